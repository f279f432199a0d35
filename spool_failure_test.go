package analytics

import (
	"errors"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// refuseConnection fails like a dial to a collector that refuses connections.
func refuseConnection(int, request) (*http.Response, error) {
	return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
}

// If all messages are in SpoolDir, Flush and Close make one attempt. If that attempt cannot
// connect to the collector, they return its error at once and leave the messages on disk.
func TestEndingWhileTheCollectorIsAway(t *testing.T) {
	for _, tt := range []struct {
		name   string
		before time.Duration // for how long the collector has been away
		end    func(t *testing.T, c *Client) error
	}{
		{"Flush", 0, func(t *testing.T, c *Client) error { return c.Flush(t.Context()) }},
		{"Close", 0, func(_ *testing.T, c *Client) error { return c.Close() }},
		{"Close in a back-off", 10 * time.Minute, func(_ *testing.T, c *Client) error { return c.Close() }},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			c, col := newSpoolClient(t.TempDir(), refuseConnection)
			c.FlushAt = 10
			track(t, c, 25)
			synctest.Wait()
			time.Sleep(tt.before)
			begin := time.Now()
			err := tt.end(t, c)
			var undelivered *UndeliveredError
			if !errors.As(err, &undelivered) || undelivered.Spooled != 25 || !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("got error %v, want 25 messages in SpoolDir because the connection was refused", err)
			}
			if took := time.Since(begin); took > 0 {
				t.Errorf("%s took %v, want no time", tt.name, took)
			}
			if s := c.Stats(); s.Attempts != uint64(len(col.got())) || s.Attempts == 0 || s.Batches != 0 {
				t.Errorf("Stats() = %+v, want %d attempts and no batch delivered or given up", s, len(col.got()))
			}
			c.Close()
		})
	}
}

// Without SpoolDir the messages are in memory alone, and Close would lose them. So the client
// retries until the collector accepts connections again.
func TestCloseWithoutSpoolDirRetriesRefusedConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newTestClient(func(i int, r request) (*http.Response, error) {
			if i < 3 {
				return refuseConnection(i, r)
			}
			return status(200), nil
		})
		track(t, c, 3)
		closeClient(t, c)
	})
}

// fakeDisk simulates a disk. The disk is full while the field full is set.
type fakeDisk struct{ full bool }

func (d *fakeDisk) reserve(f *os.File, size int64) error {
	if d.full {
		return &os.PathError{Op: "write", Path: f.Name(), Err: syscall.ENOSPC}
	}
	return f.Truncate(size)
}

// A client that starts on a full disk still sends the messages in SpoolDir.
func TestMessagesInSpoolDirAreSentWhileTheDiskIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, disk := t.TempDir(), &fakeDisk{}
		first, _ := newSpoolClient(dir, refuseConnection)
		first.reserve = disk.reserve
		track(t, first, 5)
		if err := first.Close(); err == nil {
			t.Fatal("Close returned nil with no collector")
		}
		disk.full = true
		second, col := newSpoolClient(dir, always(200))
		second.reserve = disk.reserve
		flush(t, second)
		if s := second.Stats(); s.Recovered != 5 || s.Delivered != 5 || len(col.got()) != 1 {
			t.Errorf("Stats() = %+v, %d requests, want the 5 messages delivered in one", s, len(col.got()))
		}
		track(t, second, 1) // reuses the space of the delivered messages
		closeClient(t, second)
	})
}

func TestFirstCallOnAFullDiskReturnsAConfigError(t *testing.T) {
	c, _ := newSpoolClient(t.TempDir(), always(200))
	c.reserve = (&fakeDisk{full: true}).reserve
	var config *ConfigError
	if err := c.Track(&Track{UserId: "u", Event: "e"}); !errors.As(err, &config) || config.Field != "SpoolDir" || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Track = %v, want a ConfigError for SpoolDir", err)
	}
}

// With SpoolOnly the client holds no message in memory alone. While the disk is full, Track
// returns ErrNotSpooled. Without SpoolDir, SpoolOnly is a *ConfigError.
func TestSpoolOnlyRefusesMessagesThatDoNotFitOnTheDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &fakeDisk{}
		c, _ := newSpoolClient(t.TempDir(), hang)
		c.reserve, c.SpoolOnly = disk.reserve, true
		big := strings.Repeat("x", 30_000)
		send := func() error { return c.Track(&Track{UserId: "u", Event: "e", Properties: map[string]any{"p": big}}) }
		if err := send(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // wait until the client has made its spare segments
		disk.full = true
		accepted := 1
		var err error
		for ; err == nil && accepted < 1000; accepted++ {
			err = send()
			synctest.Wait()
		}
		accepted--
		if !errors.Is(err, ErrNotSpooled) || !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("after %d messages on a full disk Track = %v, want ErrNotSpooled that wraps ENOSPC", accepted, err)
		}
		if s := c.Stats(); s.Queued != uint64(accepted) || s.Unspooled != 0 || s.Refused != 1 {
			t.Errorf("Stats() = %+v, want %d queued, none of them unspooled, and 1 refused", s, accepted)
		}
		disk.full = false
		time.Sleep(2 * diskPause)
		if err := send(); err != nil {
			t.Errorf("Track with room on the disk again: error %v, want none", err)
		}
		c.Close()
	})
	c := New("key")
	c.SpoolOnly = true
	var config *ConfigError
	if err := c.Track(&Track{UserId: "u", Event: "e"}); !errors.As(err, &config) || config.Field != "SpoolOnly" {
		t.Errorf("SpoolOnly without SpoolDir: %v, want a ConfigError", err)
	}
}
