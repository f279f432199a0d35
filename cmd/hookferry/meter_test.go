package main

import (
	"bytes"
	"errors"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

// steps yields one progress after each pause of the bubble's clock.
func steps(pause time.Duration, list ...api.Progress) iter.Seq2[api.Progress, error] {
	return func(yield func(api.Progress, error) bool) {
		for _, p := range list {
			time.Sleep(pause)
			if !yield(p, nil) {
				return
			}
		}
	}
}

func TestMeterShowsProgress(t *testing.T) {
	for _, tt := range []struct {
		name     string
		terminal bool
		width    int
		pause    time.Duration
		part     func() float64
		steps    []api.Progress
		want     string
	}{
		{name: "short work shows nothing", pause: time.Second, steps: []api.Progress{{Done: 1, Total: 2}, {Done: 2, Total: 2, Ended: true}}},
		{name: "a line every few seconds", pause: 3 * time.Second,
			steps: []api.Progress{{Done: 300, Total: 2000}, {Done: 600, Total: 2000}, {Done: 900, Total: 2000}, {Done: 1200, Total: 2000}, {Done: 1201, Ended: true}},
			want:  "told 600 of 2,000, 100/s, 14s left\ntold 1,200 of 2,000, 100/s, 8s left\n"},
		{name: "a bar", terminal: true, pause: time.Second, steps: []api.Progress{{Done: 10, Total: 40}, {Done: 30, Total: 40}, {Done: 40, Total: 40, Ended: true}},
			want: "\r\x1b[K[#####---------------]  25% told 10 of 40, 10/s" +
				"\r\x1b[K[###############-----]  75% told 30 of 40, 15/s" +
				"\r\x1b[K[####################] 100% told 40 of 40, 13.3/s, 0s left\r\x1b[K"},
		{name: "drawn at most ten times a second", terminal: true, pause: 60 * time.Millisecond, steps: []api.Progress{{Done: 1}, {Done: 2}, {Done: 3}, {Done: 4, Ended: true}},
			want: "\r\x1b[Ktold 2, 16.7/s\r\x1b[Ktold 4, 16.7/s\r\x1b[K"},
		{name: "a narrow bar", terminal: true, width: 20, pause: time.Second, steps: []api.Progress{{Done: 10, Total: 40}},
			want: "\r\x1b[K[#####------------…\r\x1b[K"},
		{name: "part of a file", terminal: true, pause: 3 * time.Second, part: func() float64 { return 0.5 }, steps: []api.Progress{{Done: 10}},
			want: "\r\x1b[K[##########----------]  50% told 10, 3.3/s, 3s left\r\x1b[K"},
		{name: "a total of one", pause: 6 * time.Second, steps: []api.Progress{{Done: 1, Total: 1}}, want: "told 1 of 1, 0.2/s, 0s left\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				m := newMeter(screen{Writer: &out, terminal: tt.terminal, width: tt.width}, "told")
				m.part = tt.part
				last, err := new(command).follow(t.Context(), m, steps(tt.pause, tt.steps...))
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tt.steps[len(tt.steps)-1], last); diff != "" {
					t.Errorf("last step (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(tt.want, out.String()); diff != "" {
					t.Errorf("shown (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestFollowSaysHowFarItGot(t *testing.T) {
	refused := &api.Error{Code: api.CodeNotFound, Message: "no destination"}
	after := func(done int, err error) iter.Seq2[api.Progress, error] {
		return func(yield func(api.Progress, error) bool) {
			if done > 0 && !yield(api.Progress{Done: done}, nil) {
				return
			}
			yield(api.Progress{}, err)
		}
	}
	for _, tt := range []struct {
		name   string
		stream iter.Seq2[api.Progress, error]
		is     error
		want   string
	}{
		{"refused", after(0, refused), refused, "no destination"},
		{"failed", after(1200, refused), refused, "1,200 were told, then: no destination"},
		{"failed in the second in which it began", func(yield func(api.Progress, error) bool) {
			yield(api.Progress{Done: 1200, Ended: true, Error: refused}, refused)
		}, refused, "1,200 were told, then: no destination"},
		{"cut off", after(0, api.ErrCutOff), api.ErrCutOff, "0 were told, then: " + api.ErrCutOff.Error()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := new(command).follow(t.Context(), newMeter(screen{Writer: new(bytes.Buffer)}, "told"), tt.stream)
			if !errors.Is(err, tt.is) || err.Error() != tt.want {
				t.Errorf("follow: error %v, want %s", err, tt.want)
			}
		})
	}
}
