// Package memnet implements TCP connections in memory, for servers and clients that are
// tested in one process.
//
// Its blocking calls are durably blocking in the sense of testing/synctest. So the time of a bubble
// can advance while a goroutine waits in such a call.
package memnet

import (
	"bytes"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// window bounds the bytes that one end of a connection has written and the other end has
// not read yet. At the bound, writes wait.
const window = 64 << 10

// A Conn is one end of a connection. Unlike net.Pipe it buffers up to 64 KB in each
// direction, so either side may write first. It ends in the same ways as TCP on Linux:
//
//   - CloseWrite: the peer reads up to io.EOF and may still write.
//   - Close: as CloseWrite, but the peer's first write after the Close is lost, and later
//     writes of the peer fail with EPIPE. With unread data, Close acts as Reset.
//   - Reset: the peer reads the data that had arrived, and then gets ECONNRESET.
//
// A Conn waits on a sync.Cond, which a synctest bubble counts as durably blocked. All
// methods may be called concurrently.
type Conn struct {
	link          *link
	in, out       *stream
	local, remote net.Addr

	// Guarded by link.mu.
	closed      bool
	read, write deadline
}

// A link is the state that both ends of a connection share.
type link struct {
	mu    sync.Mutex
	reset bool
}

// A stream is one direction of a link, guarded by its mutex.
type stream struct {
	changed sync.Cond
	buf     bytes.Buffer
	ended   bool // the writer has closed this direction
	deaf    bool // the reader has closed its end
	refused bool // something was written after the reader closed
}

// Pipe returns both ends of a new connection.
func Pipe(client, server net.Addr) (*Conn, *Conn) {
	l := new(link)
	up, down := new(stream), new(stream)
	up.changed.L, down.changed.L = &l.mu, &l.mu
	return &Conn{link: l, in: down, out: up, local: client, remote: server},
		&Conn{link: l, in: up, out: down, local: server, remote: client}
}

// LocalAddr implements [net.Conn].
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements [net.Conn].
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// Read implements [net.Conn].
func (c *Conn) Read(p []byte) (int, error) {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	for {
		switch {
		case c.closed:
			return 0, c.fail("read", net.ErrClosed)
		case c.read.passed:
			return 0, c.fail("read", os.ErrDeadlineExceeded)
		case len(p) == 0:
			return 0, nil
		case c.in.buf.Len() > 0:
			n, _ := c.in.buf.Read(p)
			c.in.changed.Broadcast()
			return n, nil
		case c.link.reset:
			return 0, c.fail("read", os.NewSyscallError("read", syscall.ECONNRESET))
		case c.in.ended:
			return 0, io.EOF
		}
		c.in.changed.Wait()
	}
}

// Write implements [net.Conn].
func (c *Conn) Write(p []byte) (int, error) {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	written := 0
	for {
		switch {
		case c.closed:
			return written, c.fail("write", net.ErrClosed)
		case c.write.passed:
			return written, c.fail("write", os.ErrDeadlineExceeded)
		case written == len(p):
			return written, nil
		case c.link.reset:
			return written, c.fail("write", os.NewSyscallError("write", syscall.ECONNRESET))
		case c.out.ended, c.out.refused:
			return written, c.fail("write", os.NewSyscallError("write", syscall.EPIPE))
		case c.out.deaf:
			c.out.refused = true
			return len(p), nil
		}
		if room := window - c.out.buf.Len(); room > 0 {
			n, _ := c.out.buf.Write(p[written:min(len(p), written+room)])
			written += n
			c.out.changed.Broadcast()
			continue
		}
		c.out.changed.Wait()
	}
}

// Close closes both directions. A second Close returns net.ErrClosed.
func (c *Conn) Close() error {
	return c.close(false)
}

// Reset closes the connection with a TCP reset.
func (c *Conn) Reset() {
	_ = c.close(true)
}

func (c *Conn) close(reset bool) error {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	if c.closed {
		return c.fail("close", net.ErrClosed)
	}
	c.closed = true
	c.read.stop()
	c.write.stop()
	if reset || c.in.buf.Len() > 0 {
		c.link.reset = true
		c.in.buf.Reset()
	}
	c.in.deaf = true
	c.out.ended = true
	c.in.changed.Broadcast()
	c.out.changed.Broadcast()
	return nil
}

// CloseWrite closes the direction in which this end writes.
func (c *Conn) CloseWrite() error {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	if c.closed {
		return c.fail("close", net.ErrClosed)
	}
	c.out.ended = true
	c.out.changed.Broadcast()
	return nil
}

// SetDeadline implements [net.Conn].
func (c *Conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

// SetReadDeadline implements [net.Conn].
func (c *Conn) SetReadDeadline(t time.Time) error {
	return c.setDeadline(&c.read, &c.in.changed, t)
}

// SetWriteDeadline implements [net.Conn].
func (c *Conn) SetWriteDeadline(t time.Time) error {
	return c.setDeadline(&c.write, &c.out.changed, t)
}

func (c *Conn) setDeadline(d *deadline, wake *sync.Cond, t time.Time) error {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	if c.closed {
		return c.fail("set", net.ErrClosed)
	}
	d.set(t, wake)
	return nil
}

func (c *Conn) fail(op string, err error) error {
	return &net.OpError{Op: op, Net: "tcp", Source: c.local, Addr: c.remote, Err: err}
}

// A deadline is the time from which the reads or writes of a connection fail.
type deadline struct {
	timer  *time.Timer // nil if no deadline is ahead
	passed bool
}

// set sets the deadline. The mutex wake.L must be held.
func (d *deadline) set(t time.Time, wake *sync.Cond) {
	d.stop()
	d.passed = false
	if t.IsZero() {
		return
	}
	wait := time.Until(t)
	if wait <= 0 {
		d.passed = true
		wake.Broadcast()
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(wait, func() {
		wake.L.Lock()
		defer wake.L.Unlock()
		if d.timer == timer {
			d.passed = true
			wake.Broadcast()
		}
	})
	d.timer = timer
}

func (d *deadline) stop() {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
}
