package memnet

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

var (
	clientAddr = &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 49152}
	serverAddr = &net.TCPAddr{IP: net.IPv4(203, 0, 113, 1), Port: 80}
)

func TestDialReachesAccept(t *testing.T) {
	l := Listen(serverAddr)
	defer l.Close()
	type accepted struct {
		conn net.Conn
		err  error
	}
	done := make(chan accepted, 1)
	go func() {
		c, err := l.Accept()
		done <- accepted{c, err}
	}()
	client, err := l.Dial(t.Context(), clientAddr)
	if err != nil {
		t.Fatal(err)
	}
	a := <-done
	if a.err != nil {
		t.Fatal(a.err)
	}
	if got := a.conn.RemoteAddr(); got != clientAddr {
		t.Errorf("RemoteAddr of the server's end = %v, want %v", got, clientAddr)
	}
	if got := client.RemoteAddr(); got != serverAddr || l.Addr() != serverAddr {
		t.Errorf("RemoteAddr of the client's end = %v, Addr = %v, want %v", got, l.Addr(), serverAddr)
	}
	if _, err := io.WriteString(client, "hello"); err != nil {
		t.Fatal(err)
	}
	client.Close()
	if got, err := io.ReadAll(a.conn); string(got) != "hello" || err != nil {
		t.Errorf("ReadAll = %q, %v, want %q, nil", got, err, "hello")
	}
	a.conn.Close()
}

func TestDialWithoutAcceptFailsAtTheDeadlineAndOnClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := Listen(serverAddr)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		start := time.Now()
		if c, err := l.Dial(ctx, clientAddr); c != nil || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Dial of a listener that does not accept = %v, %v, want context.DeadlineExceeded", c, err)
		}
		if got := time.Since(start); got != 5*time.Second {
			t.Errorf("Dial took %v, want 5s", got)
		}

		time.AfterFunc(time.Second, func() { l.Close() })
		if c, err := l.Dial(t.Context(), clientAddr); c != nil || !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("Dial of a listener that closes = %v, %v, want ECONNREFUSED", c, err)
		}
		if c, err := l.Accept(); c != nil || !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept after Close = %v, %v, want net.ErrClosed", c, err)
		}
		if err := l.Close(); err != nil {
			t.Errorf("second Close = %v, want nil", err)
		}
	})
}

func TestResetPanicsForAConnOfAnotherPackage(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("Reset of a net.Pipe did not panic")
		}
	}()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	Reset(a)
}
