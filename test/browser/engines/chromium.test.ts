import { launchChromiumEngine } from '../../helpers/chromium.js'
import { programs } from '../../helpers/programs.js'
import { testEngine } from './suite.js'

testEngine(programs.chromium, 'Chromium', { keepsBlobs: true, persists: true }, launchChromiumEngine)
