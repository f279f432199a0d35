package disk

import (
	"fmt"
	"sync"
	"sync/atomic"
)

var (
	mounts  sync.Map // names to Disks
	mounted atomic.Int64
)

// Mount returns a name that stands for d in one call of filequeue.Open, for tests.
func Mount(d Disk) (dir string) {
	dir = fmt.Sprint("simulated disk ", mounted.Add(1))
	mounts.Store(dir, d)
	return dir
}

// Mounted returns the Disk that a result of Mount stands for, or nil. It forgets the name.
func Mounted(dir string) Disk {
	d, _ := mounts.LoadAndDelete(dir)
	found, _ := d.(Disk)
	return found
}
