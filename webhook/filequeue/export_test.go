package filequeue

import (
	"os"

	"github.com/hookferry/analytics/internal/disk"
)

// OpenOn is Open on a disk.
func OpenOn(d disk.Disk, c Config) (*Store, error) { return Open(disk.Mount(d), c) }

// KeepInTables makes the janitor move what was delivered to a table as soon as it has so many bytes.
func (s *Store) KeepInTables(bytes int64) {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	s.index.historyBytes = bytes
}

// AwaitJanitor waits for what the janitor does now.
func (s *Store) AwaitJanitor() {
	s.janitor.busy <- struct{}{}
	s.janitor.resume()
}

// OpenUnsynced is Open without syncs, for tests that do not simulate a loss of power.
func OpenUnsynced(dir string, c Config) (*Store, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return open(unsynced{disk.Folder(dir)}, c)
}

type unsynced struct{ disk.Disk }

func (d unsynced) SyncNames() error { return nil }

func (d unsynced) Open(name string) (disk.File, error) {
	f, err := d.Disk.Open(name)
	return unsyncedFile{f}, err
}

func (d unsynced) Create(name string) (disk.File, error) {
	f, err := d.Disk.Create(name)
	return unsyncedFile{f}, err
}

type unsyncedFile struct{ disk.File }

func (f unsyncedFile) Sync() error { return nil }
