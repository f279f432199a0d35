//go:build !unix

package disk

// SyncFolder does nothing where folders are not files.
func SyncFolder(string) error { return nil }
