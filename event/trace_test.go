package event_test

import (
	"strings"
	"testing"

	"github.com/hookferry/analytics/event"
)

const (
	parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	state  = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"
)

func TestParseTrace(t *testing.T) {
	long := strings.Repeat("x", 240)
	for _, tt := range []struct {
		name          string
		parent, state string
		want          event.Trace
	}{
		{"both", parent, state, event.Trace{Parent: parent, State: state}},
		{"no state", parent, "", event.Trace{Parent: parent}},
		{"not sampled", parent[:53] + "00", "", event.Trace{Parent: parent[:53] + "00"}},
		{"unknown flags", parent[:53] + "fe", "", event.Trace{Parent: parent[:53] + "fe"}},
		{"no parent", "", state, event.Trace{}},
		{"too short", parent[:54], "", event.Trace{}},
		{"too long for version 00", parent + "-x", "", event.Trace{}},
		{"a later version", "cc" + parent[2:], "", event.Trace{Parent: parent}},
		{"a later version with more", "cc" + parent[2:] + "-what-the-future-will-be-like", state, event.Trace{Parent: parent, State: state}},
		{"a later version with something else", "cc" + parent[2:] + ".what", "", event.Trace{}},
		{"version ff", "ff" + parent[2:], "", event.Trace{}},
		{"upper case", strings.ToUpper(parent), "", event.Trace{}},
		{"zero trace id", "00-00000000000000000000000000000000-00f067aa0ba902b7-01", "", event.Trace{}},
		{"zero parent id", "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", "", event.Trace{}},
		{"other separators", strings.ReplaceAll(parent, "-", "_"), "", event.Trace{}},
		{"a line break", parent[:53] + "\r\n", "", event.Trace{}},
		{"commas and spaces around the state", parent, " , a=1 , b=2,, ", event.Trace{Parent: parent, State: "a=1 , b=2"}},
		{"a line break in the state", parent, "a=1\r\nX-Injected: 1", event.Trace{Parent: parent}},
		{"a tab in the state", parent, "a=1,\tb=2", event.Trace{Parent: parent}},
		{"bytes beyond ASCII", parent, "k=\u00e9", event.Trace{Parent: parent}},
		{"members of any form", parent, "A,b=1=2", event.Trace{Parent: parent, State: "A,b=1=2"}},
		{"one member that does not fit", parent, "k=" + strings.Repeat("v", 511), event.Trace{Parent: parent}},
		{"a state that is too long", parent, "a=" + long + ",b=" + long + ",c=" + long + ",d=1", event.Trace{Parent: parent, State: "a=" + long + ",b=" + long}},
		{"the longest state", parent, "a=" + long + ",b=" + long + ",c=" + long[:24], event.Trace{Parent: parent, State: "a=" + long + ",b=" + long + ",c=" + long[:24]}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := event.ParseTrace(tt.parent, tt.state)
			if got != tt.want || ok != (tt.want != event.Trace{}) {
				t.Errorf("ParseTrace(%q, %q) = %+v, %t, want %+v", tt.parent, tt.state, got, ok, tt.want)
			}
			if len(got.State) > event.MaxTraceState {
				t.Errorf("the state has %d bytes, want at most %d", len(got.State), event.MaxTraceState)
			}
		})
	}
}

func FuzzParseTrace(f *testing.F) {
	f.Add(parent, state)
	f.Add("cc"+parent[2:]+"-more", " a=1,,b=2 ")
	f.Add(parent, "k="+strings.Repeat("v", 256)+",l="+strings.Repeat("w", 256))
	f.Fuzz(func(t *testing.T, parent, state string) {
		got, ok := event.ParseTrace(parent, state)
		if !ok {
			if got != (event.Trace{}) {
				t.Fatalf("ParseTrace = %+v, false, want the zero Trace", got)
			}
			return
		}
		if all := got.Parent + got.State; len(got.Parent) != 55 || len(got.State) > event.MaxTraceState ||
			strings.ContainsFunc(all, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Fatalf("ParseTrace = %+v, which a header cannot have", got)
		}
		if again, ok := event.ParseTrace(got.Parent, got.State); !ok || again != got {
			t.Fatalf("ParseTrace of its own result = %+v, %t, want %+v", again, ok, got)
		}
	})
}
