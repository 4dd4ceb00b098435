import { programs } from '../../helpers/programs.js'
import { launchWebKit } from '../../helpers/webkit.js'
import { testEngine } from './suite.js'

testEngine(programs.webKit, 'WebKitGTK, ephemeral', { keepsBlobs: false, persists: false, forStorageAlone: true }, () =>
  launchWebKit({ ephemeral: true }),
)
