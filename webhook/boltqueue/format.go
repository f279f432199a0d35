package boltqueue

import (
	"encoding"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"slices"

	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/internal/lanes"
	"github.com/hookferry/analytics/webhook/storekit"
)

// The data file is a bbolt database, which a journal follows: see journal.go.
// Numbers in keys are big-endian, so that rows
// are in their order; times are microseconds since 1970 with the sign inverted.
//
//	meta       "version": formatVersion
//	           "state": see counts
//	           "session": 16 random bytes of who opened the file, and the number of
//	           the transaction, of those of that session
//	           "journal": the epoch of the entries that follow; with closedMark: none do
//	blocks     block -> entries: a delivery's number, the length of its row,
//	           the row. What is in memory, some 8 KB a block.
//	left       block -> which of its deliveries are left, as bits; no row: all
//	lanes      destination -> lane
//	waiting    segment, lane, due, number -> row: retries, and what did not fit
//	           in memory
//	segments   segment -> CRC-32C, and the lanes that have rows in it; see directory
//	dead       died, number -> row
//	seen       number -> time, keys: what was put within a second
//	audiences  name -> "generation", and "members": user -> generation
//	pauses     destination -> since when it is paused
//	damaged    key of a row of waiting -> row: could not be read
//
// A row is a CRC-32C and a record of package webhook.
const formatVersion = 5

var (
	bucketMeta      = []byte("meta")
	bucketBlocks    = []byte("blocks")
	bucketLeft      = []byte("left")
	bucketLanes     = []byte("lanes")
	bucketWaiting   = []byte("waiting")
	bucketSegments  = []byte("segments")
	bucketDead      = []byte("dead")
	bucketSeen      = []byte("seen")
	bucketAudiences = []byte("audiences")
	bucketPauses    = []byte("pauses")
	bucketDamaged   = []byte("damaged")

	allBuckets = [][]byte{bucketMeta, bucketBlocks, bucketLeft, bucketLanes, bucketWaiting, bucketSegments, bucketDead, bucketSeen, bucketAudiences, bucketPauses, bucketDamaged}

	rowVersion    = []byte("version")
	rowState      = []byte("state")
	rowSession    = []byte("session")
	rowJournal    = []byte("journal")
	rowGeneration = []byte("generation")
	bucketMembers = []byte("members")
)

var (
	errRow     = errors.New("boltqueue: damaged row")
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// seal returns the row of a record with a body of n bytes.
func seal(d encoding.BinaryAppender, n int) ([]byte, error) {
	return appendSealed(make([]byte, 0, n+256), d)
}

// appendSealed appends the row of a record to b, which is empty, and returns it without
// spare capacity.
func appendSealed(b []byte, d encoding.BinaryAppender) ([]byte, error) {
	b, err := d.AppendBinary(append(b, 0, 0, 0, 0))
	if err != nil {
		return nil, err
	}
	binary.LittleEndian.PutUint32(b, crc32.Checksum(b[4:], castagnoli))
	return slices.Clip(b), nil
}

// rowRoom returns about how long the row of d is, at least if it was not attempted.
func rowRoom(d *webhook.Delivery) int {
	const numbers = 64 // the checksum, times and lengths, at most
	return len(d.Destination) + len(d.ID) + len(d.MessageID) + len(d.Source) + len(d.User) + len(d.Event) + len(d.Type) + len(d.Trace.Parent) + len(d.Trace.State) + len(d.Body) + numbers
}

// unseal reads a row into d, which keeps nothing of it.
func unseal(row []byte, d encoding.BinaryUnmarshaler) error {
	if len(row) < 4 || crc32.Checksum(row[4:], castagnoli) != binary.LittleEndian.Uint32(row) {
		return errRow
	}
	return d.UnmarshalBinary(row[4:])
}

// unsealItem reads a row into an item, whose body is that of the row.
func unsealItem(row []byte, it *lanes.Item) error {
	if err := unseal(row, &it.Delivery); err != nil {
		return err
	}
	it.Body = bodyOf(row, len(it.Body))
	return nil
}

// bodyOf returns the body of n bytes that the record of a row ends with.
func bodyOf(row []byte, n int) []byte { return slices.Clip(row[len(row)-n:]) }

// counts is what a file holds.
type counts struct {
	waiting uint64
	dead    uint64
	number  uint64 // the latest given to a delivery, a dead letter or a row of seen
	lane    uint32 // the latest given to a lane
}

func (c counts) row() []byte {
	b := make([]byte, 0, 28)
	b = binary.BigEndian.AppendUint64(b, c.waiting)
	b = binary.BigEndian.AppendUint64(b, c.dead)
	b = binary.BigEndian.AppendUint64(b, c.number)
	return binary.BigEndian.AppendUint32(b, c.lane)
}

func (c *counts) read(b []byte) error {
	if len(b) != 28 {
		return fmt.Errorf("%w: state of %d bytes", errRow, len(b))
	}
	c.waiting = binary.BigEndian.Uint64(b)
	c.dead = binary.BigEndian.Uint64(b[8:])
	c.number = binary.BigEndian.Uint64(b[16:])
	c.lane = binary.BigEndian.Uint32(b[24:])
	return nil
}

// A delta is by how much there are more.
type delta struct{ waiting, dead int64 }

func (c *counts) add(d delta) {
	c.waiting += uint64(d.waiting)
	c.dead += uint64(d.dead)
}

func numberKey(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

func timeBits(micros int64) uint64 { return uint64(micros) ^ 1<<63 }
func bitsTime(bits uint64) int64   { return int64(bits ^ 1<<63) }

// orderKey is the key of a dead letter, and after the numbers of a segment and a
// lane that of a row of waiting.
func orderKey(b []byte, o lanes.Order) []byte {
	b = binary.BigEndian.AppendUint64(b, timeBits(o.At))
	return binary.BigEndian.AppendUint64(b, o.Seq)
}

func readOrder(b []byte) lanes.Order {
	return lanes.Order{At: bitsTime(binary.BigEndian.Uint64(b)), Seq: binary.BigEndian.Uint64(b[8:])}
}

func waitingKey(b []byte, segment, lane uint32, o lanes.Order) []byte {
	b = binary.BigEndian.AppendUint32(b, segment)
	return orderKey(binary.BigEndian.AppendUint32(b, lane), o)
}

// waitingPrefix is what the keys of a lane's rows in a segment begin with, with
// room for the rest.
func waitingPrefix(segment, lane uint32) []byte {
	b := binary.BigEndian.AppendUint32(make([]byte, 0, waitingKeyLen), segment)
	return binary.BigEndian.AppendUint32(b, lane)
}

func readWaitingKey(b []byte) (segment, lane uint32, o lanes.Order) {
	return binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:]), readOrder(b[8:])
}

const (
	deadKeyLen    = 16
	waitingKeyLen = 24
)

// firstOrder stands before everything.
var firstOrder = lanes.Order{At: math.MinInt64}

// seenRow is the row of the keys of one commit.
func seenRow(micros int64, keys []storekit.Key) []byte {
	b := make([]byte, 0, 8+len(keys)*len(storekit.Key{}))
	b = binary.BigEndian.AppendUint64(b, uint64(micros))
	for i := range keys {
		b = append(b, keys[i][:]...)
	}
	return b
}
