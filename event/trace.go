package event

import (
	"context"
	"strings"
)

// A Trace is the place of an event in a distributed trace, as W3C Trace Context
// has it. It is sent with every attempt, as it was given: an attempt makes no
// span of its own, so a receiver's span is a child of the caller's. The zero
// Trace is none.
type Trace struct {
	// Parent is the value of the header traceparent: 55 bytes of version 00.
	Parent string
	// State is the value of the header tracestate, at most MaxTraceState
	// bytes; it may be empty.
	State string
}

// MaxTraceState is how many bytes of a tracestate are kept. Of a longer one the
// last members are left out.
const MaxTraceState = 512

const (
	traceParentLen  = len("00-0123456789abcdef0123456789abcdef-0123456789abcdef-01")
	maxTraceMembers = 32
)

// ParseTrace reads the headers traceparent and tracestate (W3C Trace Context,
// sections 3.2 and 3.3). Several headers tracestate are joined by commas. It
// returns false, and no Trace, for a traceparent that is malformed, of the
// version ff, or all zeros in its trace or parent id; one of a later version
// than 00 is read as far as 00 goes. A tracestate that is malformed is left
// out.
func ParseTrace(traceparent, tracestate string) (Trace, bool) {
	if len(traceparent) > traceParentLen && traceparent[:2] != "00" && traceparent[traceParentLen] == '-' {
		traceparent = traceparent[:traceParentLen]
	}
	if !isTraceParent(traceparent) {
		return Trace{}, false
	}
	t := Trace{Parent: strings.Clone(traceparent)}
	if traceparent[:2] != "00" {
		t.Parent = "00" + traceparent[2:]
	}
	t.State, _ = cleanTraceState(tracestate)
	return t, true
}

// Valid reports whether the headers may be sent as they are.
func (t Trace) Valid() bool {
	if !isTraceParent(t.Parent) || t.Parent[:2] != "00" {
		return false
	}
	state, ok := cleanTraceState(t.State)
	return ok && state == t.State
}

// isTraceParent reports whether s is version "-" trace-id "-" parent-id "-"
// flags, in lower-case hexadecimal digits.
func isTraceParent(s string) bool {
	if len(s) != traceParentLen || s[2] != '-' || s[35] != '-' || s[52] != '-' {
		return false
	}
	for _, part := range []string{s[:2], s[3:35], s[36:52], s[53:]} {
		for i := range len(part) {
			if c := part[i]; !('0' <= c && c <= '9' || 'a' <= c && c <= 'f') {
				return false
			}
		}
	}
	return s[:2] != "ff" && strings.Trim(s[3:35], "0") != "" && strings.Trim(s[36:52], "0") != ""
}

// cleanTraceState returns the members of a tracestate, without white space
// around them and without empty ones, as many as fit; false and nothing if one
// is malformed or there are too many.
func cleanTraceState(s string) (string, bool) {
	if s == "" {
		return "", true
	}
	var b strings.Builder
	members, full := 0, false
	for member := range strings.SplitSeq(s, ",") {
		member = strings.Trim(member, " \t")
		if member == "" {
			continue
		}
		key, value, _ := strings.Cut(member, "=")
		if members++; !isTraceKey(key) || !isTraceValue(value) || members > maxTraceMembers {
			return "", false
		}
		size := len(member)
		if b.Len() > 0 {
			size += b.Len() + 1
		}
		if full = full || size > MaxTraceState; full {
			continue
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(member)
	}
	return b.String(), true
}

// isTraceKey reports whether s is the key of a member (Trace Context Level 2,
// section 3.3.2.2.1, which has all keys of Level 1).
func isTraceKey(s string) bool {
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
		case i == 0 || strings.IndexByte("_-*/@", c) < 0:
			return false
		}
	}
	return s != "" && len(s) <= 256
}

// isTraceValue reports whether s is the value of a member (section 3.3.2.2.2):
// up to 256 bytes from space to tilde but for commas and equals signs, and no
// space at the end, which is cut off before.
func isTraceValue(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == ',' || c == '=' {
			return false
		}
	}
	return s != "" && len(s) <= 256
}

// traceKey is the key of a context's Trace.
type traceKey struct{}

// ContextWithTrace returns a context with the trace of an event. With it, the Forwarder of
// package webhook stores the trace with what it accepts, and sends it.
// The arguments are the values of the headers traceparent and tracestate, such as
// of the request that the caller serves; if the first is not valid, ctx is
// returned as it is.
func ContextWithTrace(ctx context.Context, traceparent, tracestate string) context.Context {
	t, ok := ParseTrace(traceparent, tracestate)
	if !ok {
		return ctx
	}
	return context.WithValue(ctx, traceKey{}, t)
}

// TraceOf returns the Trace that ContextWithTrace has put into ctx; the zero Trace if there is
// none.
func TraceOf(ctx context.Context) Trace {
	t, _ := ctx.Value(traceKey{}).(Trace)
	return t
}
