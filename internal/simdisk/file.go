package simdisk

import (
	"fmt"
	"io"
	"slices"
	"syscall"
)

// A file is a handle of a node. It implements disk.File.
type file struct {
	disk   *Disk
	node   *node
	name   string
	closed bool
}

func (f *file) begin(op Op) (last bool, err error) {
	if f.closed {
		return false, fmt.Errorf("%s %s: %w", op.Kind, f.name, syscall.EBADF)
	}
	op.Name = f.name
	return f.disk.begin(op)
}

func (f *file) ReadAt(b []byte, off int64) (int, error) {
	d := f.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := f.begin(Op{Kind: Read, Off: off, Len: len(b)}); err != nil {
		return 0, err
	}
	if off >= int64(len(f.node.data)) {
		return 0, io.EOF
	}
	n := copy(b, f.node.data[off:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (f *file) WriteAt(b []byte, off int64) (int, error) {
	d := f.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	last, err := f.begin(Op{Kind: Write, Off: off, Len: len(b), Data: b})
	if last && d.rnd.IntN(4) == 0 {
		f.write(change{off, b}) // all bytes are written, although the caller gets an error
		return 0, err
	}
	if err != nil {
		n := 0
		if len(b) > 0 && d.rnd.IntN(2) == 0 {
			n = d.rnd.IntN(len(b))
			f.write(change{off, b[:n]})
		}
		return n, err
	}
	if grow := off + int64(len(b)) - int64(len(f.node.data)); grow > 0 && d.capacity > 0 && d.used+grow > d.capacity {
		n := max(0, int64(len(b))-grow+d.capacity-d.used)
		f.write(change{off, b[:n]})
		return int(n), fmt.Errorf("write %s: %w", f.name, syscall.ENOSPC)
	}
	f.write(change{off, b})
	return len(b), nil
}

// write applies a write, which is not synced yet.
func (f *file) write(c change) {
	if c.data = slices.Clone(c.data); len(c.data) == 0 {
		return
	}
	f.change(c)
}

func (f *file) change(c change) {
	n := f.node
	was := len(n.data)
	n.data = c.apply(n.data)
	n.pending = append(n.pending, c)
	if n.links > 0 {
		f.disk.used += int64(len(n.data) - was)
	}
}

func (f *file) Sync() error {
	d := f.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	n := f.node
	done := len(n.pending) // writes that arrive while fault waits are not synced
	last, err := f.begin(Op{Kind: Sync})
	done = min(done, len(n.pending))
	if err != nil && (last || d.crashed) {
		return err // Reboot draws which writes survive
	}
	for _, c := range n.pending[:done] {
		if err == nil || d.rnd.IntN(2) == 0 {
			n.synced = c.apply(n.synced)
		}
	}
	n.pending = slices.Clone(n.pending[done:])
	return err
}

func (f *file) Truncate(size int64) error {
	d := f.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	last, err := f.begin(Op{Kind: Truncate, Off: size})
	if err != nil && !(last && d.rnd.IntN(2) == 0) {
		return err
	}
	if grow := size - int64(len(f.node.data)); grow > 0 && d.capacity > 0 && d.used+grow > d.capacity {
		return fmt.Errorf("truncate %s: %w", f.name, syscall.ENOSPC)
	}
	f.change(change{off: size})
	return err
}

func (f *file) Size() (int64, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if f.disk.crashed {
		return 0, ErrCrashed
	}
	return int64(len(f.node.data)), nil
}

func (f *file) Is(name string) error {
	d := f.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.crashed {
		return ErrCrashed
	}
	if d.names[name] != f.node {
		return missing("stat", name)
	}
	return nil
}

func (f *file) Close() error {
	d := f.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if f.closed {
		return fmt.Errorf("close %s: %w", f.name, syscall.EBADF)
	}
	f.closed = true
	d.unlink(f.node)
	return nil
}
