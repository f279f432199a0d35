package event

import (
	"context"
	"strings"
)

// A Trace is the place of an event in a distributed trace (W3C Trace Context), or zero. Every
// attempt sends it unchanged, so a receiver's span is a child of the caller's.
type Trace struct {
	Parent string // the value of the header traceparent: 55 bytes of version 00
	State  string // the value of the header tracestate, at most MaxTraceState bytes
}

// MaxTraceState is the longest tracestate that is kept, in bytes. ParseTrace cuts a longer one off
// before the first member that does not fit.
const MaxTraceState = 512

const traceParentLen = len("00-0123456789abcdef0123456789abcdef-0123456789abcdef-01")

// ParseTrace reads the headers traceparent and tracestate (W3C Trace Context, sections 3.2 and
// 3.3). If a request has several tracestate headers, the caller joins them with commas.
//
// ParseTrace returns false, and no Trace, for a traceparent that is malformed, has the version ff,
// or has a trace id or parent id of zeros. Of a later version than 00, it reads the fields that
// version 00 has, and ignores the rest. It passes the members of a tracestate on unchanged, but
// drops a tracestate with a byte that is not printable ASCII.
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
	t.State = cleanTraceState(tracestate)
	return t, true
}

// Valid reports whether the trace may be sent in the headers traceparent and tracestate.
func (t Trace) Valid() bool {
	return isTraceParent(t.Parent) && t.Parent[:2] == "00" && cleanTraceState(t.State) == t.State
}

// isTraceParent reports whether s is version-traceid-parentid-flags, in lower-case hexadecimal.
func isTraceParent(s string) bool {
	if len(s) != traceParentLen || s[2] != '-' || s[35] != '-' || s[52] != '-' {
		return false
	}
	for _, part := range []string{s[:2], s[3:35], s[36:52], s[53:]} {
		if strings.Trim(part, "0123456789abcdef") != "" {
			return false
		}
	}
	return s[:2] != "ff" && strings.Trim(s[3:35], "0") != "" && strings.Trim(s[36:52], "0") != ""
}

// cleanTraceState returns the part of a tracestate that may be sent, without commas at its ends.
func cleanTraceState(s string) string {
	if len(s) > MaxTraceState {
		s = s[:max(0, strings.LastIndexByte(s[:MaxTraceState+1], ','))]
	}
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return ""
		}
	}
	return strings.Clone(strings.Trim(s, " ,"))
}

type traceKey struct{}

// ContextWithTrace returns a context with the trace of these headers, such as those of the request
// that the caller serves. A webhook.Forwarder that accepts events with this context stores and
// sends the trace with them. If traceparent is not valid, ContextWithTrace returns ctx.
func ContextWithTrace(ctx context.Context, traceparent, tracestate string) context.Context {
	t, ok := ParseTrace(traceparent, tracestate)
	if !ok {
		return ctx
	}
	return context.WithValue(ctx, traceKey{}, t)
}

// TraceOf returns the Trace that ContextWithTrace has put into ctx, zero if there is none.
func TraceOf(ctx context.Context) Trace {
	t, _ := ctx.Value(traceKey{}).(Trace)
	return t
}
