package webhook_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/store"
)

// subscribers are the destinations of acme: of all events, of invoices, and of none that fails.
func subscribers() []webhook.Destination {
	all, invoices, fails, other := at("all", hook), at("invoices", hook), at("fails", hook), at("other", hook)
	invoices.Filter.Include = []string{"invoice.*"}
	fails.Transform = func(context.Context, event.Event) (event.Event, error) { return event.Event{}, errAway }
	other.Tenant = "umbrella"
	return []webhook.Destination{all, invoices, fails, other}
}

func custom(typ, id string) *event.Custom {
	return &event.Custom{Type: typ, ID: id, Data: map[string]any{}}
}

// Send stores each call for the destinations of the tenant whose filter takes it, and says what became
// of it, with a Directory and with a fixed list, in a transaction and without.
func TestSendGoesToTheTenantsDestinations(t *testing.T) {
	for _, tt := range []struct {
		name   string
		config webhook.Config
		tx     bool
	}{
		{"Directory", webhook.Config{Directory: &directory{rows: subscribers()}}, false},
		{"Destinations", webhook.Config{Destinations: subscribers()}, false},
		{"TxDirectory", webhook.Config{Directory: &txDirectory{&directory{err: errAway}, map[string]*directory{"tx": {rows: subscribers()}}}}, true},
	} {
		box := newOutbox()
		tt.config.Store = box
		f, err := webhook.New(tt.config)
		must(t, err)
		send := func(tenant string, calls ...event.Call) []webhook.Sent {
			t.Helper()
			if tt.tx {
				sent, err := f.SendTx(t.Context(), "tx", tenant, calls...)
				must(t, err)
				return sent
			}
			sent, err := f.Send(t.Context(), tenant, calls...)
			must(t, err)
			return sent
		}
		off := &analytics.Track{UserId: "u", Event: "E", Integrations: map[string]any{"All": false}}
		got := send("acme", custom("invoice.paid", "1"), custom("order.placed", "2"), off)
		if diff := cmp.Diff([]webhook.Sent{{Stored: 2, Filtered: 1}, {Stored: 1, Filtered: 2}, {}}, got); diff != "" {
			t.Errorf("%s: Send() (-want +got):\n%s", tt.name, diff)
		}
		if !tt.tx {
			got = send("acme", custom("invoice.paid", "1"), custom("invoice.paid", "3"))
			if diff := cmp.Diff([]webhook.Sent{{Duplicates: 2, Filtered: 1}, {Stored: 2, Filtered: 1}}, got); diff != "" {
				t.Errorf("%s: Send() of one that was sent before (-want +got):\n%s", tt.name, diff)
			}
			for d, err := range store.Records(t.Context(), box, webhook.Query{Destinations: []string{"invoices"}}) {
				if err != nil || d.Tenant != "acme" {
					t.Errorf("%s: a delivery has the tenant %q, %v; want acme", tt.name, d.Tenant, err)
				}
			}
		} else if d := box.last[len(box.last)-1]; len(box.last) != 3 || d.Tenant != "acme" || d.Destination != "all" || d.ID != "2" {
			t.Errorf("%s: the last of %d deliveries of one PutTx is %+v, want 3, and that of 2 for all", tt.name, len(box.last), d)
		}
		before := f.Stats()
		got = send("nobody", custom("invoice.paid", "4"))
		if s := f.Stats(); got[0] != (webhook.Sent{}) || s.NoDestination != 1 || s.Accepted+s.InTransaction != before.Accepted+before.InTransaction {
			t.Errorf("%s: Send() to a tenant without a destination = %+v, Stats() = %+v; want nothing stored and 1 without", tt.name, got, s)
		}
		for tenant, call := range map[string]event.Call{"": custom("a", "5"), strings.Repeat("x", 256): custom("a", "5"), "acme": custom("track", "5")} {
			if _, err := f.Send(t.Context(), tenant, call); err == nil {
				t.Errorf("%s: Send() of %+v to the tenant %q = nil, want an error", tt.name, call, tenant)
			}
		}
	}
}

func TestSendHasABoundAndFailsWithTheDirectory(t *testing.T) {
	d := new(directory)
	for i := range 4096/2 + 1 {
		d.rows = append(d.rows, at(fmt.Sprint(i), hook))
	}
	f, err := webhook.New(webhook.Config{Store: testkit.Must(memqueue.Open(memqueue.Config{})), Directory: d, AnswerAge: 1})
	must(t, err)
	if sent, err := f.Send(t.Context(), "acme", custom("a", "1")); err != nil || sent[0].Stored != len(d.rows) {
		t.Errorf("Send() to %d destinations = %v, %v", len(d.rows), sent, err)
	}
	if sent, err := f.Send(t.Context(), "acme", custom("a", "2"), custom("a", "3")); !errors.Is(err, webhook.ErrTooLarge) || sent != nil {
		t.Errorf("Send() beyond 4,096 deliveries = %v, %v; want no results and ErrTooLarge", sent, err)
	}
	if _, err := f.SendTx(t.Context(), "tx", "acme", custom("a", "2")); !errors.Is(err, webhook.ErrUnsupported) {
		t.Errorf("SendTx() with a store that is no Outbox = %v, want ErrUnsupported", err)
	} else if !strings.Contains(err.Error(), "SendTx") {
		t.Errorf("the error of SendTx() does not name it: %v", err)
	}
	d.set(webhook.Destination{})
	d.err = errAway
	f.Recheck("")
	if _, err := f.Send(t.Context(), "acme", custom("a", "4")); !errors.Is(err, errAway) {
		t.Errorf("Send() while the Directory fails = %v, want %v", err, errAway)
	}
	d.err = nil
	d.set(webhook.Destination{Tenant: "acme"})
	f.Recheck("")
	if _, err := f.Send(t.Context(), "acme", custom("a", "5")); err == nil {
		t.Error("Send() to a destination without an id = nil, want an error")
	}
	must(t, f.Shutdown(t.Context()))
	if _, err := f.Send(t.Context(), "acme", custom("a", "6")); !errors.Is(err, webhook.ErrClosed) {
		t.Errorf("Send() after Shutdown = %v, want ErrClosed", err)
	}
}

// nowhere is a store that says that it has stored everything.
type nowhere struct{ *memqueue.Store }

func (nowhere) Put(_ context.Context, ps []store.Put, out []store.Result) error {
	for i := range out {
		out[i] = store.Result{Stored: true}
	}
	return nil
}

// sendForwarder stores nothing, so that only the Forwarder's own part is measured.
func sendForwarder(t testing.TB) *webhook.Forwarder {
	d := at("crm", hook)
	f, err := webhook.New(webhook.Config{Store: nowhere{testkit.Must(memqueue.Open(memqueue.Config{}))}, Directory: &directory{rows: []webhook.Destination{d}}, AnswerAge: 1 << 60})
	must(t, err)
	return f
}

// Send to one destination allocates the result, beyond what Forward does.
func TestSendAllocatesOneMoreThanForward(t *testing.T) {
	f := sendForwarder(t)
	call := custom("invoice.paid", "1")
	forward := testing.AllocsPerRun(1000, func() { must(t, f.Forward(t.Context(), "crm", call)) })
	send := testing.AllocsPerRun(1000, func() {
		_, err := f.Send(t.Context(), "acme", call)
		must(t, err)
	})
	if send > forward+1 {
		t.Errorf("Send allocates %v times, Forward %v times; want at most one more", send, forward)
	}
}

func BenchmarkSend(b *testing.B) {
	f := sendForwarder(b)
	call := custom("invoice.paid", "1")
	b.Run("to=tenant", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := f.Send(b.Context(), "acme", call); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("to=destination", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := f.Forward(b.Context(), "crm", call); err != nil {
				b.Fatal(err)
			}
		}
	})
}
