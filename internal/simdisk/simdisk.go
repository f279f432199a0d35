// Package simdisk simulates a disk in memory, for tests. A test can make the disk crash, tear
// writes, lose unsynced writes, fail or fill up, and can set its clock. Its random choices depend
// only on its seed.
//
//	d := simdisk.New(seed)
//	d.CrashAt(17)         // the disk crashes in the 17th operation from now
//	...                   // run the store on d until it fails
//	d = d.Reboot(simdisk.Power)
package simdisk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/hookferry/analytics/internal/disk"
)

// ErrCrashed is the error of every operation after a crash.
var ErrCrashed = errors.New("simdisk: crashed")

// sector is a number of bytes. If a loss of power interrupts a write, each sector of the write is
// either written completely or not at all.
const sector = 512

// A Kind says what an operation does.
type Kind string

// The kinds of operations.
const (
	Open      Kind = "open"
	Create    Kind = "create"
	Rename    Kind = "rename"
	Remove    Kind = "remove"
	List      Kind = "list"
	SyncNames Kind = "sync names"
	Lock      Kind = "lock"
	Read      Kind = "read"
	Write     Kind = "write"
	Sync      Kind = "sync"
	Truncate  Kind = "truncate"
)

// An Op is an operation that is about to be done. Size and Is do not count as operations.
type Op struct {
	Kind Kind
	// Name is the name that the file had when it was opened or made. A later Rename
	// does not change it.
	Name string
	// Off and Len are the range that is read or written. For a Truncate, Off is the new size.
	Off int64
	Len int
	// Data is what a Write writes. It must not be changed, nor read after the operation.
	Data []byte
	// N is the number of the operation on this disk, from 1.
	N int
}

// Changes reports whether the operation changes the disk, or makes a change durable.
func (o Op) Changes() bool {
	return o.Kind != Read && o.Kind != List && o.Kind != Open && o.Kind != Lock
}

// A Loss is what a crash loses.
type Loss int

const (
	// Process: only the process ends. The system keeps all writes.
	Process Loss = iota
	// Power: the machine loses its power. Some or all of the writes that were not
	// synced are lost.
	Power
)

// A Disk implements disk.Disk. All methods may be called concurrently.
type Disk struct {
	mu       sync.Mutex
	rnd      *rand.Rand
	names    map[string]*node // the files that the process sees
	durable  map[string]*node // the files that a loss of power would leave
	pending  []renames        // done since the latest SyncNames
	locks    map[string]bool
	turn     func(Op)
	fault    func(Op) error
	n        int // operations so far
	crashAt  int // the operation in which the disk crashes, or 0
	crashed  bool
	capacity int64 // 0 is no bound
	used     int64
	ahead    time.Duration // how far the clock is ahead of time.Now
}

// A renames value describes how one operation, such as Create or Rename, changes the names of
// the files. It maps each changed name to the node that has the name after the operation, or to
// nil if no file has the name any more.
type renames map[string]*node

func (r renames) apply(names map[string]*node) {
	for name, n := range r {
		if names[name] = n; n == nil {
			delete(names, name)
		}
	}
}

// A node is the content of a file.
type node struct {
	data    []byte // what the process reads
	synced  []byte // what is sure to survive a loss of power
	pending []change
	links   int // number of names and open handles
}

// A change is a write to a file that is not synced yet. A change whose data is nil is a
// Truncate to the size off.
type change struct {
	off  int64
	data []byte
}

// New returns an empty disk.
func New(seed uint64) *Disk {
	return &Disk{
		rnd:     rand.New(rand.NewPCG(seed, 0xd15c)),
		names:   make(map[string]*node),
		durable: make(map[string]*node),
		locks:   make(map[string]bool),
	}
}

// OnTurn makes the disk call the function turn before it begins an operation, when the operation has
// no number yet. The disk holds no lock during the call, so turn may wait, and so decide which of
// several operations is the first. OnTurn(nil) makes the disk call no function.
func (d *Disk) OnTurn(turn func(Op)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.turn = turn
}

// OnOp makes the disk call the function fault before each operation. The disk holds no lock during
// the call, so fault may wait, and several goroutines may call it at once. If fault returns an
// error, the operation fails with this error. A failed Write may then have written a part of its
// data. A failed Sync may have saved some writes and lost the others for ever. OnOp(nil) makes the
// disk call no function.
func (d *Disk) OnOp(fault func(Op) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fault = fault
}

// CrashAt makes the disk crash in the nth operation from now. This operation may be done in part.
// This and all later operations return ErrCrashed. CrashAt(0) cancels the crash.
func (d *Disk) CrashAt(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.crashAt = d.n + n; n == 0 {
		d.crashAt = 0
	}
}

// Crash makes all operations return ErrCrashed from now on.
func (d *Disk) Crash() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.crashed = true
}

// Crashed reports whether the disk has crashed.
func (d *Disk) Crashed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.crashed
}

// Ops returns how many operations there were.
func (d *Disk) Ops() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.n
}

// SetCapacity bounds the bytes of all files. An operation that would exceed the bound returns
// ENOSPC. Zero means no bound.
func (d *Disk) SetCapacity(bytes int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.capacity = bytes
}

// SetClock sets the clock of the machine ahead of time.Now, or behind it.
func (d *Disk) SetClock(ahead time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ahead = ahead
}

// Now implements disk.Disk.
func (d *Disk) Now() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Now().Add(d.ahead)
}

// Used returns the bytes of all files, including files that were removed and are still open.
func (d *Disk) Used() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.used
}

// Reboot crashes the disk and returns a new disk with the data that survived. The new disk has the
// same bound and clock, and no file is open or locked. After a reboot with Process, writes that
// were not synced may still be lost in a later loss of power. A second Reboot of the same disk may
// let other data survive.
func (d *Disk) Reboot(loss Loss) *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.crashed = true
	next := New(d.rnd.Uint64())
	next.capacity, next.ahead = d.capacity, d.ahead
	if loss == Process {
		copies := make(map[*node]*node)
		next.names, next.durable = copyNames(d.names, copies), copyNames(d.durable, copies)
		for _, r := range d.pending {
			next.pending = append(next.pending, copyNames(r, copies))
		}
		for _, n := range next.names {
			n.links++
		}
		for n := range maps.Values(copies) {
			if n.links > 0 {
				next.used += int64(len(n.data))
			}
		}
		return next
	}
	names := maps.Clone(d.durable)
	for _, r := range d.pending[:d.rnd.IntN(len(d.pending)+1)] {
		r.apply(names)
	}
	for _, name := range slices.Sorted(maps.Keys(names)) { // in a fixed order, because each call of lose draws random numbers
		next.put(name, names[name].lose(d.rnd))
	}
	return next
}

// copyNames copies names and their nodes, each node once.
func copyNames(names map[string]*node, copies map[*node]*node) map[string]*node {
	all := make(map[string]*node, len(names))
	for name, n := range names {
		if n != nil && copies[n] == nil {
			copies[n] = &node{data: slices.Clone(n.data), synced: slices.Clone(n.synced), pending: slices.Clone(n.pending)}
		}
		all[name] = copies[n]
	}
	return all
}

// lose returns the content of a file after a loss of power.
func (n *node) lose(rnd *rand.Rand) []byte {
	data := slices.Clone(n.synced)
	how, upTo := rnd.IntN(4), rnd.IntN(len(n.pending)+1)
	for i, c := range n.pending {
		switch {
		case how == 0: // nothing survives
		case how == 1: // everything does
			data = c.apply(data)
		case how == 2: // the first changes survive, and a part of the next
			if i < upTo {
				data = c.apply(data)
			} else if i == upTo {
				data = c.tear(data, rnd)
			}
		default: // anything
			data = c.tear(data, rnd)
		}
	}
	return data
}

func (c change) apply(data []byte) []byte {
	if c.data == nil {
		return resize(data, c.off)
	}
	if end := c.off + int64(len(c.data)); end > int64(len(data)) {
		data = resize(data, end)
	}
	copy(data[c.off:], c.data)
	return data
}

// tear applies a random part of a change to data. It applies some sectors of a write, or none. It
// applies a Truncate either completely or not at all.
func (c change) tear(data []byte, rnd *rand.Rand) []byte {
	if c.data == nil {
		if rnd.IntN(2) == 0 {
			return data
		}
		return c.apply(data)
	}
	for from := 0; from < len(c.data); {
		to := min(from+sector-int(c.off+int64(from))%sector, len(c.data))
		if rnd.IntN(2) == 0 {
			data = change{c.off + int64(from), c.data[from:to]}.apply(data)
		}
		from = to
	}
	return data
}

func resize(data []byte, size int64) []byte {
	if size <= int64(len(data)) {
		return data[:size]
	}
	// The array may still have bytes that an earlier Truncate cut off, so append zeros.
	return append(data, make([]byte, size-int64(len(data)))...)
}

// Names returns the sorted names of the files.
func (d *Disk) Names() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.names))
}

// ReadFile returns the content of a file, or nil if there is no such file.
func (d *Disk) ReadFile(name string) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := d.names[name]; n != nil {
		return slices.Clone(n.data)
	}
	return nil
}

// WriteFile creates or replaces a file with data, durably. It does not count as an operation
// of the disk, so OnOp and CrashAt have no effect on it.
func (d *Disk) WriteFile(name string, data []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := d.names[name]; n != nil {
		d.unlink(n)
	}
	d.put(name, slices.Clone(data))
}

// put adds a file that is durable.
func (d *Disk) put(name string, data []byte) {
	n := &node{data: data, synced: slices.Clone(data), links: 1}
	d.names[name], d.durable[name] = n, n
	d.used += int64(len(data))
}

// begin begins an operation. The caller holds d.mu. begin releases d.mu while it calls the
// functions of OnTurn and OnOp. If the result last is true, the disk crashes in this operation,
// which may be done in part.
func (d *Disk) begin(op Op) (last bool, err error) {
	if turn := d.turn; turn != nil && !d.crashed {
		d.mu.Unlock()
		turn(op)
		d.mu.Lock()
	}
	if d.crashed {
		return false, ErrCrashed
	}
	d.n++
	op.N = d.n
	if d.n == d.crashAt {
		d.crashed = true
		return true, ErrCrashed
	}
	if fault := d.fault; fault != nil {
		d.mu.Unlock()
		err = fault(op)
		d.mu.Lock()
		if d.crashed && err == nil {
			err = ErrCrashed
		}
	}
	if err != nil {
		err = fmt.Errorf("%s %s: %w", op.Kind, op.Name, err)
	}
	return false, err
}

// rename applies r to the names. The change is not durable until SyncNames.
func (d *Disk) rename(r renames) {
	r.apply(d.names)
	d.pending = append(d.pending, r)
}

func (d *Disk) unlink(n *node) {
	if n.links--; n.links == 0 {
		d.used -= int64(len(n.data))
	}
}

func missing(op, name string) error { return &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist} }

// Open implements disk.Disk.
func (d *Disk) Open(name string) (disk.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.begin(Op{Kind: Open, Name: name}); err != nil {
		return nil, err
	}
	n := d.names[name]
	if n == nil {
		return nil, missing("open", name)
	}
	n.links++
	return &file{disk: d, node: n, name: name}, nil
}

// Create implements disk.Disk.
func (d *Disk) Create(name string) (disk.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	last, err := d.begin(Op{Kind: Create, Name: name})
	if err != nil && !(last && d.rnd.IntN(2) == 0) {
		return nil, err
	}
	if d.names[name] != nil {
		return nil, &fs.PathError{Op: "create", Path: name, Err: fs.ErrExist}
	}
	n := &node{links: 2}
	d.rename(renames{name: n})
	return &file{disk: d, node: n, name: name}, err
}

// Rename implements disk.Disk.
func (d *Disk) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	last, err := d.begin(Op{Kind: Rename, Name: from})
	if err != nil && !(last && d.rnd.IntN(2) == 0) {
		return err
	}
	n := d.names[from]
	if n == nil {
		return missing("rename", from)
	}
	if old := d.names[to]; old != nil && old != n {
		d.unlink(old)
	}
	d.rename(renames{from: nil, to: n})
	return err
}

// Remove implements disk.Disk.
func (d *Disk) Remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	last, err := d.begin(Op{Kind: Remove, Name: name})
	if err != nil && !(last && d.rnd.IntN(2) == 0) {
		return err
	}
	n := d.names[name]
	if n == nil {
		return missing("remove", name)
	}
	d.unlink(n)
	d.rename(renames{name: nil})
	return err
}

// List implements disk.Disk.
func (d *Disk) List() ([]disk.Info, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.begin(Op{Kind: List}); err != nil {
		return nil, err
	}
	var files []disk.Info
	for _, name := range slices.Sorted(maps.Keys(d.names)) {
		files = append(files, disk.Info{Name: name, Size: int64(len(d.names[name].data))})
	}
	return files, nil
}

// SyncNames implements disk.Disk.
func (d *Disk) SyncNames() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	last, err := d.begin(Op{Kind: SyncNames})
	if err != nil && !(last && d.rnd.IntN(2) == 0) {
		return err
	}
	d.durable = maps.Clone(d.names)
	d.pending = nil
	return err
}

// Lock implements disk.Disk.
func (d *Disk) Lock(name string) (io.Closer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.begin(Op{Kind: Lock, Name: name}); err != nil {
		return nil, err
	}
	if d.locks[name] {
		return nil, disk.ErrLocked
	}
	if d.names[name] == nil {
		n := &node{links: 1}
		d.rename(renames{name: n})
	}
	d.locks[name] = true
	return lock{d, name}, nil
}

type lock struct {
	disk *Disk
	name string
}

func (l lock) Close() error {
	l.disk.mu.Lock()
	defer l.disk.mu.Unlock()
	delete(l.disk.locks, l.name)
	return nil
}

// Room implements disk.Disk.
func (d *Disk) Room() (total, free int64, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.capacity == 0 {
		return 1 << 40, 1<<40 - d.used, nil
	}
	return d.capacity, max(0, d.capacity-d.used), nil
}

var _ disk.Disk = (*Disk)(nil)
