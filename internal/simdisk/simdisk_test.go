package simdisk_test

import (
	"bytes"
	"errors"
	"syscall"
	"testing"

	"github.com/hookferry/analytics/internal/disk"
	"github.com/hookferry/analytics/internal/simdisk"
)

// create makes a file and syncs its name.
func create(t *testing.T, d disk.Disk, name string) disk.File {
	t.Helper()
	f, err := d.Create(name)
	if err == nil {
		err = d.SyncNames()
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func write(t *testing.T, f disk.File, b []byte, off int64) {
	t.Helper()
	if _, err := f.WriteAt(b, off); err != nil {
		t.Fatal(err)
	}
}

// After a loss of power, the disk has all synced data. Of the data and names that were not synced,
// it has any part: the seed decides which sectors. If only the process ends, nothing is lost.
func TestSyncedDataSurvivesALossOfPower(t *testing.T) {
	outcomes := make(map[string]int)
	for seed := range uint64(200) {
		d := simdisk.New(seed)
		f := create(t, d, "a")
		write(t, f, bytes.Repeat([]byte("a"), 1024), 0)
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
		write(t, f, bytes.Repeat([]byte("b"), 1536), 512)
		if _, err := d.Create("new"); err != nil {
			t.Fatal(err)
		}
		after := d.Reboot(simdisk.Power)
		if _, err := f.Size(); !errors.Is(err, simdisk.ErrCrashed) {
			t.Fatalf("Size after a crash: %v, want ErrCrashed", err)
		}
		got := after.ReadFile("a")
		if len(got) < 1024 || !bytes.Equal(got[:512], bytes.Repeat([]byte("a"), 512)) {
			t.Fatalf("seed %d: the loss of power lost synced data", seed)
		}
		outcome := ""
		for i := 0; i < len(got); i += 512 {
			outcome += string(got[i])
		}
		if len(after.Names()) == 2 {
			outcome += " new"
		}
		outcomes[outcome]++
		if got := d.Reboot(simdisk.Process).ReadFile("a"); len(got) != 2048 || got[2047] != 'b' {
			t.Fatalf("the file has %d bytes after the end of the process, want all 2048", len(got))
		}
	}
	for _, want := range []string{"aa", "abbb", "ab", "aa\x00b", "aabb", "ab new"} {
		if outcomes[want] == 0 {
			t.Errorf("no seed leads to the outcome %q, want one; outcomes: %v", want, outcomes)
		}
	}
}

// A failed Sync may lose the writes before it. The process still reads them, and a later Sync
// succeeds. But a loss of power can remove them.
func TestWritesBeforeAFailedSyncMayBeLost(t *testing.T) {
	lost := 0
	for seed := range uint64(40) {
		d := simdisk.New(seed)
		f := create(t, d, "a")
		write(t, f, []byte("a"), 0)
		d.OnOp(func(op simdisk.Op) error {
			if op.Kind == simdisk.Sync {
				return syscall.EIO
			}
			return nil
		})
		if err := f.Sync(); !errors.Is(err, syscall.EIO) {
			t.Fatalf("Sync: %v, want EIO", err)
		}
		d.OnOp(nil)
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
		if len(d.ReadFile("a")) != 1 {
			t.Fatal("the process does not read the byte that it wrote")
		}
		if len(d.Reboot(simdisk.Power).ReadFile("a")) == 0 {
			lost++
		}
	}
	if lost == 0 || lost == 40 {
		t.Errorf("%d of 40 writes were lost, want some, but not all", lost)
	}
}

func TestEachOperationFromCrashAtOnFails(t *testing.T) {
	d := simdisk.New(1)
	f := create(t, d, "a")
	d.CrashAt(2)
	write(t, f, []byte("a"), 0)
	if err := f.Sync(); !errors.Is(err, simdisk.ErrCrashed) {
		t.Errorf("the second operation: %v, want ErrCrashed", err)
	}
	if _, err := d.Lock("lock"); !errors.Is(err, simdisk.ErrCrashed) || !d.Crashed() {
		t.Errorf("an operation after the crash: %v, want ErrCrashed", err)
	}
	if _, err := d.Reboot(simdisk.Power).Open("a"); err != nil {
		t.Errorf("Open after Reboot: %v, want nil", err)
	}
}

func TestWritesBeyondTheCapacityFail(t *testing.T) {
	d := simdisk.New(1)
	d.SetCapacity(1000)
	f := create(t, d, "a")
	write(t, f, make([]byte, 900), 0)
	if n, err := f.WriteAt(make([]byte, 200), 800); n != 200 || err != nil {
		t.Errorf("WriteAt up to the capacity = %d, %v, want 200, nil", n, err)
	}
	if n, err := f.WriteAt(make([]byte, 200), 900); n != 100 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("WriteAt beyond the capacity = %d, %v, want 100, ENOSPC", n, err)
	}
	if err := d.Remove("a"); err != nil || d.Used() != 1000 {
		t.Errorf("Remove of an open file: %v, %d bytes used, want nil, 1000", err, d.Used())
	}
	if err := f.Close(); err != nil || d.Used() != 0 {
		t.Errorf("Close: %v, %d bytes used, want nil, 0", err, d.Used())
	}
}

// OnTurn calls a function before each operation, which has no number yet, and holds no lock then.
func TestOnTurn(t *testing.T) {
	d := simdisk.New(1)
	var turns []simdisk.Op
	d.OnTurn(func(op simdisk.Op) {
		turns = append(turns, op)
		d.Used() // waits for ever if the disk holds a lock
	})
	d.OnOp(func(op simdisk.Op) error {
		if len(turns) != op.N {
			t.Errorf("operation %d: got %d turns before it, want %d", op.N, len(turns), op.N)
		}
		return nil
	})
	f, err := d.Create("a")
	if err == nil {
		_, err = f.WriteAt([]byte("text"), 3)
	}
	if err != nil {
		t.Fatal(err)
	}
	if op := turns[len(turns)-1]; len(turns) != 2 || op.Kind != simdisk.Write || op.Off != 3 || string(op.Data) != "text" || op.N != 0 {
		t.Errorf("got %d turns, the last for %+v, want 2, the last for the write", len(turns), op)
	}
	d.Crash()
	if _, err := d.List(); err == nil || len(turns) != 2 {
		t.Errorf("after a crash: got the error %v, and %d turns, want no further turn", err, len(turns))
	}
}
