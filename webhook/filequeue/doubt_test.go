package filequeue_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/hookferry/analytics/internal/simdisk"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/store"
)

// crash crashes the disk with the store, and returns a disk with what the process left.
func (r *rig) crash() *simdisk.Disk {
	d := r.d.Reboot(simdisk.Process)
	r.s.Close()
	return d
}

// check checks a copy of a disk in a folder.
func check(t *testing.T, d *simdisk.Disk) (filequeue.Report, error) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range d.Names() {
		if err := os.WriteFile(filepath.Join(dir, name), d.ReadFile(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filequeue.Check(t.Context(), dir, nil)
}

// openOn opens a store, and returns how many deliveries wait, and the log.
func openOn(t *testing.T, d *simdisk.Disk) (waiting int, log string, err error) {
	t.Helper()
	var b bytes.Buffer
	s, err := filequeue.OpenOn(d, filequeue.Config{Logger: slog.New(slog.NewTextHandler(&b, nil))})
	if err != nil {
		return 0, b.String(), err
	}
	defer s.Close()
	synctest.Wait()
	c, err := s.Count(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return c.Waiting, b.String(), nil
}

// After a crash, the newest segment is removed, emptied, zeroed, cut or renamed. The store then does
// not open, or has all deliveries, or logs an error. Check finds each loss.
func TestNewestSegmentDoesNotVanishSilently(t *testing.T) {
	mutations := map[string]func(d *simdisk.Disk, name string, b []byte) error{
		"removed":     func(d *simdisk.Disk, name string, b []byte) error { return d.Remove(name) },
		"emptied":     func(d *simdisk.Disk, name string, b []byte) error { d.WriteFile(name, nil); return nil },
		"zeroed":      func(d *simdisk.Disk, name string, b []byte) error { clear(b); d.WriteFile(name, b); return nil },
		"cut in half": func(d *simdisk.Disk, name string, b []byte) error { d.WriteFile(name, b[:len(b)/2]); return nil },
		"with a zeroed half": func(d *simdisk.Disk, name string, b []byte) error {
			clear(b[len(b)/2:])
			d.WriteFile(name, b)
			return nil
		},
		"renamed": func(d *simdisk.Disk, name string, b []byte) error { return d.Rename(name, name+".bak") },
		"with another number": func(d *simdisk.Disk, name string, b []byte) error {
			return d.Rename(name, "segment-0000000042"+name[18:])
		},
		"with an old number": func(d *simdisk.Disk, name string, b []byte) error {
			return d.Rename(name, "segment-0000000000"+name[18:])
		},
		"with another salt": func(d *simdisk.Disk, name string, b []byte) error {
			return d.Rename(name, name[:19]+"0123456789abcdef.log")
		},
	}
	for what, mutate := range mutations {
		for _, segments := range []int{1, 3} {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, filequeue.Config{})
				r.put("a", 100, false)
				for range segments - 1 {
					r.fill(func() { r.put("a", 1000, false) })
				}
				for range 30 {
					r.put("a", 1000, false)
				}
				latest, d := r.latest(), r.crash()
				b := bytes.TrimRight(d.ReadFile(latest), "\x00")
				if err := mutate(d, latest, b); err != nil {
					t.Fatal(err)
				}
				report, cerr := check(t, d)
				got, log, err := openOn(t, d)
				if err == nil && got != r.n && !strings.Contains(log, "level=ERROR") || err != nil && !errors.Is(err, filequeue.ErrDamaged) {
					t.Errorf("%s, %d segments: %d of %d deliveries wait, Open = %v; want all, ErrDamaged, or an error in the log:\n%s", what, segments, got, r.n, err, log)
				}
				if report.Waiting != r.n && (len(report.Missing) == 0 || !errors.Is(cerr, filequeue.ErrDamaged)) || err != nil && cerr == nil {
					t.Errorf("%s, %d segments: Check = %+v, %v; want %d waiting, or ErrDamaged", what, segments, report, cerr, r.n)
				}
				whole := strings.Contains("removed emptied zeroed renamed", what)
				if whole && (err == nil || !strings.Contains(err.Error(), latest)) {
					t.Errorf("%s, %d segments: Open = %v, want an error that names %s", what, segments, err, latest)
				}
			})
		}
	}
}

// A bit of the last commit flips after a crash. Only the delivery with that bit is missing, and the log
// has an error about it.
func TestBitFlipInLastCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, filequeue.Config{})
		r.put("a", 100, false)
		before := len(bytes.TrimRight(r.d.ReadFile(r.latest()), "\x00"))
		r.putAtOnce(1, 20)
		latest, d := r.latest(), r.crash()
		b := bytes.TrimRight(d.ReadFile(latest), "\x00")
		for at := before; at < len(b); at += 5 {
			d := d.Reboot(simdisk.Process)
			spoiled := bytes.Clone(b)
			spoiled[at] ^= 1
			d.WriteFile(latest, spoiled)
			report, cerr := check(t, d)
			got, log, err := openOn(t, d)
			if err != nil || got != r.n && (got != r.n-1 || !strings.Contains(log, "level=ERROR")) {
				t.Errorf("byte %d of %d: %d of %d deliveries wait, %v; want all but one, and an error in the log:\n%s", at, len(b), got, r.n, err, log)
			}
			if report.Waiting != got || (report.Waiting != r.n) != errors.Is(cerr, filequeue.ErrDamaged) {
				t.Errorf("byte %d of %d: Check = %+v, %v; want %d waiting, and ErrDamaged if one is missing", at, len(b), report, cerr, got)
			}
		}
	})
}

// putAtOnce makes one commit with some calls of Put, which store n deliveries each. Another commit with
// one delivery comes before it.
func (r *rig) putAtOnce(calls, n int) {
	r.Helper()
	release := make(chan struct{})
	r.d.OnOp(func(op simdisk.Op) error {
		if op.Kind == simdisk.Sync {
			<-release
		}
		return nil
	})
	put := func(n int) {
		ps := make([]store.Put, n)
		for i := range ps {
			r.n++
			ps[i].Delivery = store.Delivery{Destination: "a", ID: fmt.Sprint(r.n), MessageID: fmt.Sprint("m", r.n), Due: r.s.Now(), Body: bodyOf(fmt.Sprint(r.n), 100)}
		}
		go func() {
			if err := r.s.Put(r.Context(), ps, make([]store.Result, n)); err != nil {
				r.Error(err)
			}
		}()
		synctest.Wait()
	}
	put(1)
	for range calls {
		put(n)
	}
	close(release)
	synctest.Wait()
	r.d.OnOp(nil)
}

// After a loss of power no mark says whether the last commit was complete, and one of its records cannot
// be read. The calls of Put that can be read as a whole are kept, and the others are left out. The log
// warns of them once, and the store goes on without damage.
func TestLastCommitInDoubt(t *testing.T) {
	for _, c := range []struct{ calls, n int }{{20, 1}, {5, 4}, {1, 20}} {
		for _, torn := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, filequeue.Config{})
				r.put("a", 100, false)
				manifest := r.d.ReadFile("MANIFEST")
				before := len(bytes.TrimRight(r.d.ReadFile(r.latest()), "\x00"))
				r.putAtOnce(c.calls, c.n)
				latest, crashed := r.latest(), r.crash()
				crashed.WriteFile("MANIFEST", manifest) // the later marks are lost
				b := bytes.TrimRight(crashed.ReadFile(latest), "\x00")
				for at := before + 300; at < len(b); at += 37 { // the first commit is known, as another follows it
					d := crashed.Reboot(simdisk.Process)
					spoiled := bytes.Clone(b)
					if spoiled[at] ^= 1; torn {
						clear(spoiled[at:min(at+512, len(b))])
					}
					d.WriteFile(latest, spoiled)
					least := r.n - c.n
					if torn { // 512 bytes are parts of four deliveries, or fewer
						least = r.n - min(4, c.calls)*c.n
					}
					report, cerr := check(t, d)
					got, log, err := openOn(t, d)
					warned := strings.Contains(log, "level=WARN") && strings.Contains(log, "last commit")
					if err != nil || got < least || (r.n-got)%c.n > 0 || got < r.n && !warned || strings.Contains(log, "ERROR") {
						t.Errorf("%+v, torn %v, byte %d of %d: %d of %d deliveries wait, %v; want at least %d, and a warning if some are missing:\n%s", c, torn, at, len(b), got, r.n, err, least, log)
					}
					if cerr != nil || report.Waiting != got || warned != (report.InDoubt != "") {
						t.Errorf("%+v, torn %v, byte %d of %d: Check = %+v, %v; want %d waiting, and the same doubt", c, torn, at, len(b), report, cerr, got)
					}
					if report, err := check(t, d); err != nil || report.Waiting != got || report.InDoubt != "" {
						t.Errorf("%+v, torn %v, byte %d of %d: a later Check = %+v, %v; want %d waiting, and no doubt", c, torn, at, len(b), report, err, got)
					}
				}
			})
		}
	}
}

// The process ends when it has removed a file, and nothing has made that durable. Once the store is open
// again, the file does not come back with a loss of power: as a segment, it could be taken for the end
// of the log.
func TestRemovedFileDoesNotComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, filequeue.Config{})
		r.put("a", 100, false)
		r.d.WriteFile("file", []byte("x"))
		if err := r.d.Remove("file"); err != nil {
			t.Fatal(err)
		}
		r.d = r.crash()
		r.open(filequeue.Config{})
		r.put("a", 100, false)
		r.d.Crash()
		r.s.Close()
		for range 10 { // each loses something else
			if slices.Contains(r.d.Reboot(simdisk.Power).Names(), "file") {
				t.Fatal("the file is there again")
			}
		}
	})
}

// A segment from before the latest mark comes back, and says that the log has gone on in it. Then the
// store does not open, as it would leave out what came after the commit before that segment.
func TestSegmentThatContradictsTheMark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, filequeue.Config{})
		r.put("a", 100, false)
		first, before := r.latest(), r.d.Reboot(simdisk.Process)
		r.d = before.Reboot(simdisk.Process)
		r.s.Close()
		r.open(filequeue.Config{})
		r.d.OnOp(func(op simdisk.Op) error {
			if op.Kind == simdisk.Write && op.Name == first {
				return syscall.EIO
			}
			return nil
		})
		for n := range 2 {
			p := store.Put{Delivery: store.Delivery{Destination: "a", ID: fmt.Sprint("b", n), Due: r.s.Now(), Body: bodyOf("b", 100)}}
			r.s.Put(t.Context(), []store.Put{p}, make([]store.Result, 1)) // the second one begins another segment
		}
		other := r.latest()
		if other == first {
			t.Fatal("there is no other segment")
		}
		b := r.d.ReadFile(other)
		r.s.Close()
		r.d = before.Reboot(simdisk.Process)
		r.open(filequeue.Config{})
		r.put("a", 100, false)
		d := r.crash()
		d.WriteFile(other, b)
		_, cerr := check(t, d)
		_, log, err := openOn(t, d)
		if !errors.Is(err, filequeue.ErrDamaged) || !errors.Is(cerr, filequeue.ErrDamaged) || !strings.Contains(log, first+" has commits") {
			t.Errorf("Open = %v, Check = %v; want ErrDamaged, and an error about %s:\n%s", err, cerr, first, log)
		}
	})
}
