package analytics

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
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

// An answer that says nothing about the messages drops none of SpoolDir: they are sent once the key
// or the place is right. An answer about the messages drops them.
func TestMisdirectedMessagesStayInSpoolDir(t *testing.T) {
	for _, tt := range []struct {
		code int
		kept bool
	}{
		{302, true}, {308, true}, {401, true}, {403, true}, {404, true}, {405, true}, {407, true},
		{400, false}, {422, false},
	} {
		bubble(t, strconv.Itoa(tt.code), func(t *testing.T) {
			var right atomic.Bool
			book := newLogbook()
			c, col := newSpoolClient(t.TempDir(), func(int, request) (*http.Response, error) {
				if right.Load() {
					return status(200), nil
				}
				return status(tt.code), nil
			})
			c.Logger = slog.New(book)
			track(t, c, 15)
			begin := time.Now()
			err := c.Flush(t.Context())
			if took := time.Since(begin); took > 0 {
				t.Errorf("Flush took %v, want no time", took)
			}
			if !tt.kept {
				checkUndelivered(t, err, UndeliveredError{Dropped: 15})
				closeClient(t, c)
				return
			}
			checkUndelivered(t, err, UndeliveredError{Spooled: 15})
			track(t, c, 10)
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			checkSpool(t, c, 25)
			n := len(col.got())
			if s := c.Stats(); n < 30 || n > 70 || s.Misdirected != uint64(n) || s.Dropped != 0 {
				t.Errorf("%d requests in 10 minutes, Stats() = %+v; want one every 10 to 20 s, each counted, and none dropped", n, s)
			}
			if n := len(book.lines); n < 8 || n > 10 {
				t.Errorf("%d lines in 10 minutes, want one a minute: %q", n, book.lines)
			}
			for _, line := range book.lines {
				if !strings.Contains(line, "WARN batches refused, which stay in SpoolDir") {
					t.Errorf("log has %q", line)
				}
			}
			right.Store(true)
			time.Sleep(time.Minute)
			synctest.Wait()
			if s := c.Stats(); s.Delivered != 25 || !s.sums() {
				t.Errorf("Stats() = %+v, want 25 delivered", s)
			}
			if last := book.lines[len(book.lines)-1]; !strings.Contains(last, "INFO uploads succeed again") {
				t.Errorf("log ends with %q", last)
			}
			closeClient(t, c)
		})
	}
}

// Close does not wait for the end of a misdirection. The next client sends the messages.
func TestCloseLeavesMisdirectedMessagesInSpoolDir(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		c, _ := newSpoolClient(dir, always(401))
		track(t, c, 3)
		time.Sleep(time.Minute)
		begin := time.Now()
		checkUndelivered(t, c.Close(), UndeliveredError{Spooled: 3})
		if took := time.Since(begin); took > 0 {
			t.Errorf("Close took %v, want no time", took)
		}
		next, _ := newSpoolClient(dir, nil)
		flush(t, next)
		if s := next.Stats(); s.Recovered != 3 || s.Delivered != 3 {
			t.Errorf("the next client's Stats() = %+v, want 3 recovered and delivered", s)
		}
		closeClient(t, next)
	})
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
