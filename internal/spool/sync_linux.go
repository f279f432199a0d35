package spool

import (
	"os"

	"github.com/hookferry/analytics/internal/disk"
)

// syncMapping returns when the content of the mapping is on the disk. The dirty pages of a
// mapping are pages of the file, so msync is not needed.
func syncMapping(f *os.File, _ []byte) error { return disk.SyncData(f) }
