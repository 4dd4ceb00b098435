import { programs } from '../../helpers/programs.js'
import { launchWebKit } from '../../helpers/webkit.js'
import { testEngine } from './suite.js'

testEngine(programs.webKit, 'WebKitGTK', { keepsBlobs: true, persists: false }, launchWebKit)
