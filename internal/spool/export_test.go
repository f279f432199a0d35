package spool

// Plain makes Open write changes through instead of mapping files.
func Plain(c *Config) { c.plain = true }

const CanMap = canMap

// SegmentSize returns the full size of a segment file in the folder.
func SegmentSize(c Config) int { return c.layout().size() }

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
