//go:build !unix

package disk

// SyncFolder does nothing, because this system cannot sync a folder.
func SyncFolder(string) error { return nil }
