package boltqueue

// SetSyncing says whether files are synced.
func SetSyncing(on bool) { syncing = on }
