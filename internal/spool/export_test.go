package spool

// Plain makes Open write files with system calls instead of mapping them.
func Plain(c *Config) { c.plain = true }

const CanMap = canMap

// SegmentSize returns the full size of a segment file in the folder.
func SegmentSize(c Config) int { return c.layout().size() }

// Used returns the bytes on disk that count towards MaxBytes.
func (d *Dir) Used() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.used
}

// Fits reports whether the segment has room for a message of n bytes.
func (s *Segment) Fits(n int) bool { return s.fits(n) }

// Synced returns how many messages of a segment are known to be on the disk.
func Synced(s *Segment) int {
	s.syncing.Lock()
	defer s.syncing.Unlock()
	return s.synced
}

var (
	MapFile  = mapFile
	Guard    = guard
	Fill     = fill
	ErrFault = errFault
)

func IsPlain(c Config) bool { return c.plain }
