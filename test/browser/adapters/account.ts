/** What the queues of these pages have beside what the README says: an account of its own for each test, which gives it. */
export const { account } = globalThis as unknown as { account: { name: string; headers: { Authorization: string } } }
