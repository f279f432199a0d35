package audience_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
)

const erpHook = "http://erp.example/hook"

// several returns two enabled destinations, and "off", which is disabled.
func several() []webhook.Destination {
	off := destination("off", "http://off.example/hook")
	off.Disabled = true
	return []webhook.Destination{crm, destination("erp", erpHook), off}
}

// delete calls Delete, and returns the number of events that the forwarder accepted.
func (r *rig) delete(ctx context.Context, d audience.Deletion, users iter.Seq2[string, error]) (accepted int64, err error) {
	before := r.Stats().Accepted
	err = r.Delete(ctx, d, users)
	return r.Stats().Accepted - before, err
}

// TestDeletionSendsOncePerSource shows that a deletion sends one event per user and source, and
// none again under the same id. The documentation of the event says: "Deletion request created
// (per affected source with the destination enabled)".
func TestDeletionSendsOncePerSource(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		crm, erp := r.network.Receiver(hook, "shh"), r.network.Receiver(erpHook, "shh")
		r.start(several()...)
		type want = map[string]int // notifications by receiver and user
		for i, tt := range []struct {
			name         string
			id           string
			destinations []string
			users        []string
			accepted     int64
			want         want
		}{
			{"one source", "r1", []string{"crm"}, []string{"u1"}, 1, want{"crm u1": 1}},
			{"the same request again", "r1", []string{"crm"}, []string{"u1"}, 0, nil},
			{"the same request for more users", "r1", []string{"crm"}, []string{"u2", "u1"}, 1, want{"crm u2": 1}},
			{"the same request for more sources", "r1", []string{"erp", "crm"}, []string{"u1"}, 1, want{"erp u1": 1}},
			{"another request", "r2", []string{"crm"}, []string{"u1"}, 1, want{"crm u1": 1}},
			{"a user twice", "r3", []string{"crm"}, []string{"u1", "u1"}, 1, want{"crm u1": 1}},
			{"two sources", "r4", []string{"crm", "erp"}, []string{"u1", "u2"}, 4, want{"crm u1": 1, "crm u2": 1, "erp u1": 1, "erp u2": 1}},
			{"sources with one destination", "r5", []string{"crm", "erp", "crm", "crm"}, []string{"u1"}, 4, want{"crm u1": 3, "erp u1": 1}},
			{"the same sources in another order", "r5", []string{"crm", "crm", "crm", "erp"}, []string{"u1"}, 0, nil},
			{"ids r6 and 7u1, whose join is ambiguous", "r6", []string{"crm"}, []string{"7u1"}, 1, want{"crm 7u1": 1}},
			{"ids r67 and u1, with the same join", "r67", []string{"crm"}, []string{"u1"}, 1, want{"crm u1": 1}},
			{"no users", "r8", []string{"crm"}, nil, 0, nil},
			{"a disabled destination", "r9", []string{"off"}, []string{"u1"}, 1, nil},
		} {
			before := []int{len(crm.Requests()), len(erp.Requests())}
			n, err := r.delete(t.Context(), audience.Deletion{ID: tt.id, Destinations: tt.destinations}, users(tt.users...))
			if n != tt.accepted || err != nil {
				t.Errorf("%s: %d events, %v, want %d", tt.name, n, err, tt.accepted)
			}
			synctest.Wait()
			got := make(want)
			for _, q := range crm.Requests()[before[0]:] {
				got["crm "+q.JSON["userId"].(string)]++
				if len(q.JSON) != 3 || q.JSON["type"] != "delete" || q.Signature != nil {
					t.Errorf("%s: body is %s, signature error %v, want a signed delete with 3 members", tt.name, q.Body, q.Signature)
				}
			}
			for _, q := range erp.Requests()[before[1]:] {
				got["erp "+q.JSON["userId"].(string)]++
			}
			if tt.want == nil {
				tt.want = want{}
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("%d, %s (-want +got):\n%s", i, tt.name, d)
			}
		}
		time.Sleep(time.Second) // outcomes are stored together
		if n := r.waiting(); n != 1 {
			t.Errorf("%d deliveries wait for the disabled destination, want 1", n)
		}

		// Each call of Delete without an ID is a request of its own.
		before := len(erp.Requests())
		for range 2 {
			if err := r.Delete(t.Context(), audience.Deletion{Destinations: []string{"erp", "erp"}}, users("u1")); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if n := len(erp.Requests()) - before; n != 4 {
			t.Errorf("two calls of Delete for two sources sent %d events, want 4", n)
		}
	})
}

// TestDeletionResumesAfterAnError shows that a request that failed goes on when it is made again.
// No user is sent twice, and none is missing.
func TestDeletionResumesAfterAnError(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.network.Receiver(hook, "shh")
		erp := r.network.Receiver(erpHook, "shh")
		r.start(several()...)
		d := audience.Deletion{ID: "r1", Destinations: []string{"crm", "erp"}}
		const n = 5000
		broken := errors.New("the cursor is lost")
		list := func(until int, end func(yield func(string, error) bool)) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				for i := range until {
					if !yield(fmt.Sprint("user-", i), nil) {
						return
					}
				}
				if end != nil {
					end(yield)
				}
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		total := int64(0)
		for _, tt := range []struct {
			name string
			ctx  context.Context
			list iter.Seq2[string, error]
			want error
		}{
			{"the list fails", t.Context(), list(2500, func(yield func(string, error) bool) { yield("", broken) }), broken},
			{"the context ends", ctx, list(3500, func(func(string, error) bool) { cancel() }), context.Canceled},
			{"nothing fails", t.Context(), list(n, nil), nil},
			{"nothing is left", t.Context(), list(n, nil), nil},
		} {
			accepted, err := r.delete(tt.ctx, d, tt.list)
			if !errors.Is(err, tt.want) {
				t.Errorf("%s: Delete = %v, want %v", tt.name, err, tt.want)
			}
			total += accepted
		}
		if total != 2*n {
			t.Errorf("the forwarder accepted %d events, want %d", total, 2*n)
		}
		time.Sleep(time.Second) // outcomes are stored together
		sent := make(map[any]bool)
		for _, q := range erp.Requests() {
			if sent[q.JSON["userId"]] {
				t.Errorf("erp got the user %s twice", q.JSON["userId"])
			}
			sent[q.JSON["userId"]] = true
		}
		if len(sent) != n {
			t.Errorf("erp got %d users, want %d", len(sent), n)
		}
	})
}

func TestDeletionRefusesWrongRequests(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.network.Receiver(hook, "shh")
		r.start(several()...)
		good := audience.Deletion{ID: "r", Destinations: []string{"crm"}}
		for _, tt := range []struct {
			name     string
			deletion audience.Deletion
			want     error // nil for any error
		}{
			{"with an ID that is too long", audience.Deletion{ID: strings.Repeat("x", 256), Destinations: []string{"crm"}}, nil},
			{"without destinations", audience.Deletion{ID: "r"}, webhook.ErrUnknownDestination},
			{"of an unknown destination", audience.Deletion{ID: "r", Destinations: []string{"crm", "xyz"}}, webhook.ErrUnknownDestination},
		} {
			n, err := r.delete(t.Context(), tt.deletion, users("u"))
			if n != 0 || err == nil || tt.want != nil && !errors.Is(err, tt.want) {
				t.Errorf("a deletion %s: %d events, error %v, want none and an error", tt.name, n, err)
			}
		}
		for _, user := range []string{"", strings.Repeat("x", 8193)} {
			list := append(slices.Repeat([]string{"same"}, 2048), "last", user, "after")
			n, err := r.delete(t.Context(), audience.Deletion{ID: fmt.Sprint(len(user)), Destinations: []string{"crm"}}, users(list...))
			var ue *audience.UserError
			if want := (audience.UserError{Position: 2049, Size: len(user), Limit: 8192}); !errors.As(err, &ue) || *ue != want {
				t.Errorf("a user id of %d bytes: %v, want %v", len(user), err, &want)
			}
			if n != 1 {
				t.Errorf("the forwarder accepted %d events before the wrong id, want 1", n)
			}
		}
		if n, err := r.delete(t.Context(), good, users(strings.Repeat("x", 8192))); n != 1 || err != nil {
			t.Errorf("a user id of 8192 bytes: %d events, error %v, want 1 and none", n, err)
		}
		n, err := r.delete(t.Context(), good, func(yield func(string, error) bool) {
			r.Shutdown(t.Context())
			yield("late", nil)
		})
		if n != 0 || !errors.Is(err, webhook.ErrClosed) {
			t.Errorf("Delete during Shutdown: %d events, error %v, want none and ErrClosed", n, err)
		}
		if n, err := r.delete(t.Context(), good, users("u")); n != 0 || !errors.Is(err, webhook.ErrClosed) {
			t.Errorf("Delete after Shutdown: %d events, error %v, want none and ErrClosed", n, err)
		}
	})
}

// TestDeletionWaitsForAFullQueue shows that Delete goes on at the pace of the deliveries while the
// queue is full.
func TestDeletionWaitsForAFullQueue(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.queue.Close()
		r.queue = testkit.Must(memqueue.Open(memqueue.Config{MaxBytes: 64 << 10}))
		recv := r.network.Receiver(hook, "shh")
		r.start(crm)
		d := audience.Deletion{ID: "r1", Destinations: []string{"crm"}}
		n, err := r.delete(t.Context(), d, numbered(0, 1000, false, func() {}))
		if n != 1000 || err != nil {
			t.Errorf("Delete: %d events, error %v, want 1000 and none", n, err)
		}
		synctest.Wait()
		if got := len(recv.Requests()); got != 1000 {
			t.Errorf("%d events arrived, want 1000", got)
		}
	})
}

func TestDeletionBody(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		recv := r.network.Receiver(hook, "shh")
		r.start(crm)
		if err := r.Delete(t.Context(), audience.Deletion{Destinations: []string{"crm"}}, users("u<1>")); err != nil {
			t.Fatal(err)
		}
		reqs, _ := recv.Wait(t.Context(), 1)
		if got, want := string(reqs[0].Body), `{"type":"delete","userId":"u<1>","timestamp":"2000-01-01T00:00:00.000Z"}`; got != want {
			t.Errorf("body is %s, want %s", got, want)
		}
	})
}
