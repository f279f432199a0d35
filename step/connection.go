package step

import (
	"context"
	"net"

	"github.com/hookferry/analytics/internal/memnet"
)

// Connects reports whether the step is a connection step.
func (s Step) Connects() bool { return s.kind >= refuse }

// Refuses reports whether the step is a connection step that lets no connection come about.
func (s Step) Refuses() bool { return s.Connects() && s.kind < resetEarly }

// Dial waits for the delays of a step that refuses connections, and returns the error of the attempt
// to connect to host. If ctx ends first, the error wraps that of ctx.
func (s Step) Dial(ctx context.Context, host string) error {
	err := s.pause(ctx)
	switch {
	case err != nil:
	case s.kind == noSuchHost:
		err = &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	case s.kind == unreachable:
		<-ctx.Done()
		err = ctx.Err()
	default:
		err = memnet.ErrRefused
	}
	return memnet.DialError(err)
}

// Accept does a connection step on a connection that was accepted, and closes it. It returns when
// ctx has ended, or before.
func (s Step) Accept(ctx context.Context, c net.Conn) {
	if !s.silent() && s.pause(ctx) == nil {
		memnet.Reset(c)
		return
	}
	<-ctx.Done()
	_ = c.Close()
}

// silent reports whether a connection step sends nothing on a connection that is open.
func (s Step) silent() bool { return s.kind == unreachable || s.kind == stall }
