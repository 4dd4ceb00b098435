import { describeWith } from '../helpers/describe-with.js'
import { programs } from '../helpers/programs.js'
import { itKeepsEveryPromise, useLanes } from './lanes.js'

describeWith(programs.postgres, 'the server under faults', () => itKeepsEveryPromise(useLanes(), 1))
