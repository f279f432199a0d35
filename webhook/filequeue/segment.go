package filequeue

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/hookferry/analytics/internal/disk"
)

// A segmentID is the name of a segment. Names sort by their numbers. The random salt is part of the
// checksums of headers, so no body can have bytes that pass for a record of the segment.
type segmentID struct {
	number uint32
	salt   uint64
}

func (id segmentID) name() string { return string(id.append(make([]byte, 0, 64))) }

// append appends the name to b.
func (id segmentID) append(b []byte) []byte {
	b = append(b, "segment"...)
	at := len(b)
	b = strconv.AppendUint(b, 1e10+uint64(id.number), 10) // 10 digits behind the first one
	b[at] = '-'
	var salt [8]byte
	binary.BigEndian.PutUint64(salt[:], id.salt)
	return append(hex.AppendEncode(append(b, '-'), salt[:]), ".log"...)
}

// parseName returns the segment with a name. ok reports whether it is the name of a segment.
func parseName(name string) (id segmentID, ok bool) {
	_, err := fmt.Sscanf(name, "segment-%d-%x", &id.number, &id.salt)
	return id, err == nil && name == id.name()
}

// A segment is a file of records. index.mu guards the fields from end on.
type segment struct {
	segmentID
	file disk.File
	pins atomic.Int32 // one for the index, and one for each reader; the last unpin closes the file

	end    int64 // the offset where the records end; it grows while the segment is active
	live   int64 // bytes of the records of deliveries and settings that are needed
	keys   int64 // bytes of the records of kindKeys
	sealed bool  // no record is appended any more
	hinted bool  // it has a hint, or can have none because it is damaged
	copied bool  // it has an old copy of a record that is needed elsewhere

	later time.Time // until then the janitor leaves it alone; only the janitor uses this
}

func (g *segment) needed() int64 { return g.live + g.keys }

func (g *segment) unpin() {
	if g.pins.Add(-1) == 0 {
		g.file.Close()
	}
}

// segments holds the segments of a store by number. index.mu guards the map.
type segments map[uint32]*segment

// numbers returns all numbers in order.
func (s segments) numbers() []uint32 { return slices.Sorted(maps.Keys(s)) }

// record returns a record of kindSegments that lists all segments with a commit, except the number
// without. It lists the active one, too, because the commit of the record may begin a new segment.
func (s segments) record(without uint32) record {
	var refs []ref
	for _, n := range s.numbers() {
		if n != without && s[n].end > 0 {
			refs = append(refs, ref{uint64(s[n].end), n})
		}
	}
	return listing(kindSegments, refs)
}

// live returns the bytes that Config.MaxBytes bounds.
func (s segments) live() (bytes int64) {
	for _, g := range s {
		bytes += g.live
	}
	return bytes
}
