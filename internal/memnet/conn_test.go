package memnet

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func memPair(*testing.T) (net.Conn, net.Conn) {
	return Pipe(&net.TCPAddr{Port: 1}, &net.TCPAddr{Port: 2})
}

func tcpPair(t *testing.T) (net.Conn, net.Conn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return a, b
}

// TestConnClosesLikeTCP takes the same steps on connections in memory and on real TCP connections.
func TestConnClosesLikeTCP(t *testing.T) {
	write := func(t *testing.T, c net.Conn, s string) {
		t.Helper()
		if n, err := io.WriteString(c, s); n != len(s) || err != nil {
			t.Fatalf("Write(%q) = %d, %v; want %d, nil", s, n, err, len(s))
		}
	}
	read := func(t *testing.T, c net.Conn, want string, wantErr error) {
		t.Helper()
		got, err := io.ReadAll(c)
		if string(got) != want || !errors.Is(err, wantErr) {
			t.Fatalf("ReadAll = %q, %v; want %q, %v", got, err, want, wantErr)
		}
	}
	// awaitEnd waits until b has noticed that the other end is closed.
	awaitEnd := func(t *testing.T, b net.Conn) {
		t.Helper()
		_, _ = b.Read(make([]byte, 1))
	}
	tests := []struct {
		name string
		do   func(t *testing.T, a, b net.Conn)
	}{
		{"CloseWrite leaves the other direction open", func(t *testing.T, a, b net.Conn) {
			write(t, a, "question")
			if err := a.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
				t.Fatalf("CloseWrite = %v; want nil", err)
			}
			read(t, b, "question", nil)
			write(t, b, "answer")
			b.Close()
			read(t, a, "answer", nil)
			if _, err := a.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
				t.Errorf("Write after CloseWrite = %v; want EPIPE", err)
			}
		}},
		{"Close lets the peer read what was written", func(t *testing.T, a, b net.Conn) {
			write(t, a, "last words")
			a.Close()
			read(t, b, "last words", nil)
		}},
		{"the first write after the peer's Close is lost, the second fails", func(t *testing.T, a, b net.Conn) {
			a.Close()
			awaitEnd(t, b)
			write(t, b, "lost")
			_, err := b.Write([]byte("x"))
			for _, tcp := b.(*net.TCPConn); tcp && err == nil; {
				_, err = b.Write([]byte("x")) // the reset has not arrived yet
			}
			if !errors.Is(err, syscall.EPIPE) {
				t.Errorf("second Write = %v; want EPIPE", err)
			}
		}},
		{"Close with unread data resets", func(t *testing.T, a, b net.Conn) {
			write(t, b, "unread")
			write(t, a, "said before")
			if _, err := io.ReadFull(a, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			a.Close()
			read(t, b, "said before", syscall.ECONNRESET)
		}},
		{"Reset lets the peer read the bytes that had arrived", func(t *testing.T, a, b net.Conn) {
			write(t, a, "arrived")
			if _, err := io.ReadFull(b, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			Reset(a)
			read(t, b, "rrived", syscall.ECONNRESET)
		}},
		{"every call fails after Close", func(t *testing.T, a, b net.Conn) {
			a.Close()
			_, rerr := a.Read(make([]byte, 1))
			_, werr := a.Write([]byte("x"))
			for op, err := range map[string]error{
				"Read": rerr, "Write": werr, "Close": a.Close(), "SetDeadline": a.SetDeadline(time.Now()),
				"CloseWrite": a.(interface{ CloseWrite() error }).CloseWrite(),
			} {
				var op2 *net.OpError
				if !errors.Is(err, net.ErrClosed) || !errors.As(err, &op2) {
					t.Errorf("%s after Close = %v; want net.ErrClosed in a *net.OpError", op, err)
				}
			}
		}},
		{"a deadline in the past fails at once", func(t *testing.T, a, b net.Conn) {
			write(t, b, "there")
			if err := a.SetDeadline(time.Unix(1, 0)); err != nil {
				t.Fatal(err)
			}
			_, rerr := a.Read(make([]byte, 1))
			_, werr := a.Write([]byte("x"))
			for op, err := range map[string]error{"Read": rerr, "Write": werr} {
				var ne net.Error
				if !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &ne) || !ne.Timeout() {
					t.Errorf("%s = %v; want a timeout", op, err)
				}
			}
			if err := a.SetDeadline(time.Time{}); err != nil {
				t.Fatal(err)
			}
			b.Close()
			read(t, a, "there", nil)
		}},
	}
	nets := map[string]func(*testing.T) (net.Conn, net.Conn){"memory": memPair}
	if runtime.GOOS == "linux" { // TCP differs on other systems
		nets["tcp"] = tcpPair
	}
	for network, pair := range nets {
		for _, tt := range tests {
			t.Run(network+"/"+tt.name, func(t *testing.T) {
				a, b := pair(t)
				defer a.Close()
				defer b.Close()
				tt.do(t, a, b)
			})
		}
	}
}

func TestConnTransfersBytesInBothDirections(t *testing.T) {
	a, b := memPair(t)
	random := rand.New(rand.NewPCG(1, 2))
	data := make([]byte, 5*window+17)
	for i := range data {
		data[i] = byte(random.Uint32())
	}
	var wg sync.WaitGroup
	for _, c := range []net.Conn{a, b} {
		wg.Go(func() {
			for chunk := data; len(chunk) > 0; {
				n := min(len(chunk), 3001)
				if _, err := c.Write(chunk[:n]); err != nil {
					t.Errorf("Write = %v", err)
					return
				}
				chunk = chunk[n:]
			}
			_ = c.(*Conn).CloseWrite()
		})
		wg.Go(func() {
			got, err := io.ReadAll(c)
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("ReadAll = %d bytes, %v; want the %d that were written", len(got), err, len(data))
			}
		})
	}
	wg.Wait()
}

func TestReadsAndWritesEndAtTheirDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := memPair(t)
		start := time.Now()
		elapsed := func(want time.Duration, what string, err error) {
			t.Helper()
			if got := time.Since(start); got != want || !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s: %v after %v; want a timeout after %v", what, err, got, want)
			}
		}

		_ = a.SetReadDeadline(start.Add(5 * time.Second))
		_, err := a.Read(make([]byte, 1))
		elapsed(5*time.Second, "Read", err)

		// A later deadline replaces an earlier one, even while a read waits.
		_ = a.SetReadDeadline(start.Add(6 * time.Second))
		time.AfterFunc(500*time.Millisecond, func() { _ = a.SetReadDeadline(start.Add(9 * time.Second)) })
		_, err = a.Read(make([]byte, 1))
		elapsed(9*time.Second, "Read with its deadline postponed", err)

		// A deadline in the past wakes a waiting read.
		_ = a.SetReadDeadline(time.Time{})
		time.AfterFunc(time.Second, func() { _ = a.SetReadDeadline(time.Unix(1, 0)) })
		_, err = a.Read(make([]byte, 1))
		elapsed(10*time.Second, "Read with the deadline moved to the past", err)

		// A write waits until there is room. If it fails, it returns the number of bytes written.
		_ = a.SetWriteDeadline(start.Add(12 * time.Second))
		n, err := a.Write(make([]byte, window+1))
		elapsed(12*time.Second, "Write", err)
		if n != window {
			t.Errorf("Write = %d; want %d, the window", n, window)
		}
		_ = a.SetWriteDeadline(time.Time{})
		time.AfterFunc(time.Second, func() { _, _ = io.ReadFull(b, make([]byte, 1)) })
		if n, err := a.Write([]byte("x")); n != 1 || err != nil {
			t.Errorf("Write once there is room = %d, %v; want 1, nil", n, err)
		}
		if got := time.Since(start); got != 13*time.Second {
			t.Errorf("Write ended after %v; want 13s", got)
		}

		// Close wakes a waiting read.
		_ = a.SetReadDeadline(time.Time{})
		time.AfterFunc(time.Second, func() { _ = a.Close() })
		if _, err := a.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Read ended by Close = %v; want net.ErrClosed", err)
		}
	})
}
