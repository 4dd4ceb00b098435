import { launchFirefox } from '../../helpers/firefox.js'
import { programs } from '../../helpers/programs.js'
import { testEngine } from './suite.js'

testEngine(programs.firefox, 'Firefox', { keepsBlobs: true, persists: true }, launchFirefox)
