/** What every contestant is told. */
export interface Setting {
  endpoint: string
  transport: 'fetch' | 'xhr'
  /** Uploads under way at once. */
  atOnce: number
  /** SHA-256 of each file by name, for those who do not hash: so the server has the same work with all. */
  digests: Record<string, string>
  /** Says that the bytes of every file are on disk by now; those who keep none never do. */
  onDurable(): void
}

/** One way to bring files to a server. */
export interface Contestant {
  /** Sends all; resolves when every one is answered and nothing about them is left to do. */
  drain?(files: File[]): Promise<void>
  /** Resolves when what `drain` left going behind the scenes is over. */
  outlast?(): Promise<void>
  /** Resolves when it is on disk; sends nothing. */
  save?(file: File): Promise<void>
  /** Leaves files for a later page. */
  leave?(files: File[]): Promise<void>
  /** Takes up what was left. Resolves with how many there are, when all are known; their sending begins by itself. */
  resume?(): Promise<number>
}

export type CreateContestant = (setting: Setting) => Contestant
