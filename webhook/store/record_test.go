package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hookferry/analytics/event"
)

// recordDelivery returns a delivery with every field but Trace.
func recordDelivery() Delivery {
	at := time.Date(2030, 1, 2, 3, 4, 5, 678901000, time.UTC)
	return Delivery{
		Destination: "crm",
		ID:          "3f2c1d1e-6a54-4d0f-8a0e-0a8f2b0c9d11",
		MessageID:   "invoice-1042-paid",
		Source:      "shop",
		User:        "u1",
		Event:       "Invoice Paid",
		Tenant:      "acme",
		Key:         "customer-9",
		Seq:         1042,
		Type:        "track",
		Body:        []byte("{\"a\":\"\x00\xff\"}"),
		Accepted:    at,
		Due:         at.Add(time.Minute),
		Expires:     at.Add(4 * time.Hour),
		Tries:       7,
		Closed:      []Closed{{Endpoint: math.MaxUint64}, {Endpoint: 1, Until: at}},
		Attempts: []Attempt{
			{At: at, Took: Millis(5 * time.Second), Try: 1, Endpoint: "https://example.com/a", Reason: ReasonTimeout, Error: "no answer"},
			{At: at, Took: Millis(17 * time.Microsecond), Try: 7, Endpoint: "https://example.com/b", Status: 503, Reason: ReasonServerError, Batch: "b1", Header: "webhook-timestamp: 1\n", Answer: strings.Repeat("x", 256)},
		},
	}
}

// UnmarshalBinary reads back what AppendBinary has written, without referring to the record's
// bytes. The Claim is not stored.
func TestDeliveryRecordRoundTrips(t *testing.T) {
	full := recordDelivery()
	most := recordDelivery()
	most.Destination, most.ID = strings.Repeat("d", 255), strings.Repeat("i", 255)
	most.MessageID, most.Source = strings.Repeat("m", 255), strings.Repeat("s", 255)
	most.User, most.Event = strings.Repeat("u", 255), strings.Repeat("e", 255)
	most.Tenant, most.Key, most.Seq = strings.Repeat("t", 255), strings.Repeat("k", 255), math.MaxUint64
	most.Closed = make([]Closed, MaxEndpoints)
	most.Attempts = make([]Attempt, MaxAttempts)
	most.Body = bytes.Repeat([]byte("b"), 64<<10)
	traced := recordDelivery()
	traced.Trace = event.Trace{Parent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", State: strings.Repeat("s", event.MaxTraceState)}
	old := Delivery{Destination: "a", ID: "1", Due: time.Date(1900, 1, 1, 0, 0, 0, 0, time.UTC), Expires: time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC)}
	for _, tt := range []struct {
		name string
		d    Delivery
	}{
		{"all fields without a trace", full},
		{"all fields", traced},
		{"every field at its limit", most},
		{"zero", Delivery{}},
		{"times far in the past and future", old},
	} {
		t.Run(tt.name, func(t *testing.T) {
			prefix := []byte("before")
			tt.d.Claim = 99
			b, err := tt.d.AppendBinary(bytes.Clone(prefix))
			if err != nil || !bytes.HasPrefix(b, prefix) {
				t.Fatalf("AppendBinary() = %q, %v; want the prefix kept and no error", b, err)
			}
			b = b[len(prefix):]
			got := full // UnmarshalBinary overwrites every field
			if err := got.UnmarshalBinary(b); err != nil {
				t.Fatalf("UnmarshalBinary() = %v, want nil", err)
			}
			want := tt.d
			want.Claim = 0
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("delivery that was read (-want +got):\n%s", diff)
			}
			again, err := got.AppendBinary(nil)
			if err != nil || !bytes.Equal(again, b) {
				t.Errorf("AppendBinary() of the delivery that was read = %x, %v; want %x", again, err, b)
			}
			clear(b)
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("delivery after its record was cleared (-want +got):\n%s", diff)
			}

			dead := Record{Delivery: want, Reason: ReasonExpired, At: full.Due}
			if b, err = dead.AppendBinary(nil); err != nil {
				t.Fatalf("AppendBinary() of a dead letter = %v, want nil", err)
			}
			back := Record{State: "state"}
			if err := back.UnmarshalBinary(b); err != nil {
				t.Fatalf("UnmarshalBinary() = %v, want nil", err)
			}
			dead.State = "state"
			if diff := cmp.Diff(dead, back, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("dead letter that was read (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDeliveryRecordKeepsMicroseconds(t *testing.T) {
	d := recordDelivery()
	d.Due = d.Due.Add(999 * time.Nanosecond).In(time.FixedZone("east", 3600))
	b, err := d.AppendBinary(nil)
	must(t, err)
	var got Delivery
	must(t, got.UnmarshalBinary(b))
	if want := recordDelivery().Due; got.Due != want {
		t.Errorf("Due = %v, want %v", got.Due, want)
	}
}

func TestAppendBinaryRefusesCountsOutOfRange(t *testing.T) {
	for _, tt := range []struct {
		d    Delivery
		want string
	}{
		{Delivery{Attempts: make([]Attempt, MaxAttempts+1)}, fmt.Sprintf("%d attempts, more than %d", MaxAttempts+1, MaxAttempts)},
		{Delivery{Closed: make([]Closed, MaxEndpoints+1)}, fmt.Sprintf("%d closed endpoints, more than %d", MaxEndpoints+1, MaxEndpoints)},
		{Delivery{Tries: -1}, "tries: -1"},
		{Delivery{Attempts: []Attempt{{Try: -1}}}, "try -1"},
		{Delivery{Attempts: []Attempt{{Status: -1}}}, "status -1"},
	} {
		d := tt.d
		prefix := []byte("before")
		b, err := d.AppendBinary(prefix)
		if err == nil || !strings.Contains(err.Error(), tt.want) || string(b) != "before" {
			t.Errorf("AppendBinary of %d attempts, %d closed endpoints and %d tries = %q, %v; want the prefix and an error with %q", len(d.Attempts), len(d.Closed), d.Tries, b, err, tt.want)
		}
		if _, err := (&Record{Delivery: d}).AppendBinary(prefix); err == nil {
			t.Errorf("AppendBinary of a dead letter with %d attempts and %d closed endpoints = nil, want an error", len(d.Attempts), len(d.Closed))
		}
	}
}

func TestCheckRefusesInvalidDeliveries(t *testing.T) {
	long := strings.Repeat("x", MaxID)
	for _, d := range []Delivery{
		{ID: "1"},
		{Destination: "a"},
		{Destination: long + "x", ID: "1"},
		{Destination: "a", ID: long + "x"},
		{Destination: "a", ID: "1", Tries: -1},
		{Destination: "a", ID: "1", MessageID: long + "x"},
		{Destination: "a", ID: "1", Source: long + "x"},
		{Destination: "a", ID: "1", User: long + "x"},
		{Destination: "a", ID: "1", Event: long + "x"},
		{Destination: "a", ID: "1", Tenant: long + "x"},
		{Destination: "a", ID: "1", Key: long + "x"},
	} {
		if err := d.Check(); err == nil {
			t.Errorf("Check() of the invalid delivery %+v = nil, want an error", d)
		}
	}
	if err := (&Delivery{Destination: long, ID: long, MessageID: long, Source: long, User: long, Event: long, Tenant: long, Key: long}).Check(); err != nil {
		t.Error(err)
	}
}

// Stores keep records, so a record of this version always has the same bytes. A change of the
// format needs a new version.
func TestDeliveryRecordFormatIsStable(t *testing.T) {
	const (
		at   = "\x80\x89\xa5\x91\xc7\x82\xe0\x06"
		want = "\x04\x01a\x02id\x02m1\x01s\x01u\x01e\x01t\x01k\x05track" + at + at + "\x00\x00\x00\x00\x01p\x01s\x09\x02{}"
	)
	due := time.UnixMicro(1_900_000_000_123_456).UTC()
	d := Delivery{
		Destination: "a", ID: "id", MessageID: "m1", Source: "s", User: "u", Event: "e", Tenant: "t", Key: "k", Type: "track", Seq: 9,
		Accepted: due, Due: due, Trace: event.Trace{Parent: "p", State: "s"}, Body: []byte("{}"),
	}
	if b, err := d.AppendBinary(nil); err != nil || string(b) != want {
		t.Errorf("AppendBinary() = %q, %v; want %q", b, err, want)
	}
}

// UnmarshalBinary returns errRecord for a record that is cut short, has more bytes, has another
// version, or has a count out of range.
func TestMalformedRecordsAreRefused(t *testing.T) {
	d := recordDelivery()
	whole, err := d.AppendBinary(nil)
	must(t, err)
	dead := Record{Delivery: d, Reason: ReasonExpired, At: d.Due}
	wholeDead, err := dead.AppendBinary(nil)
	must(t, err)
	traced := d
	traced.Trace = event.Trace{Parent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", State: "a=1"}
	wholeTraced, err := traced.AppendBinary(nil)
	must(t, err)
	bad := func(b []byte, what string) {
		t.Helper()
		if err := new(Delivery).UnmarshalBinary(b); !errors.Is(err, errRecord) {
			t.Errorf("UnmarshalBinary() of a record %s = %v, want %v", what, err, errRecord)
		}
	}
	for n := range whole {
		bad(whole[:n], "cut short")
	}
	for n := range wholeTraced {
		bad(wholeTraced[:n], "with a trace, cut short")
	}
	for n := range wholeDead {
		if err := new(Record).UnmarshalBinary(wholeDead[:n]); !errors.Is(err, errRecord) {
			t.Errorf("UnmarshalBinary() of a dead letter cut short to %d bytes = %v, want %v", n, err, errRecord)
		}
	}
	bad(append(bytes.Clone(whole), 0), "with one more byte")
	bad(append([]byte{recordVersion + 1}, whole[1:]...), "of a later version")
	bad(append([]byte{recordVersion - 1}, whole[1:]...), "of an earlier version")
	bad(append([]byte{0}, whole[1:]...), "of version 0")
	if err := new(Record).UnmarshalBinary(append([]byte{recordVersion + 1}, wholeDead[1:]...)); !errors.Is(err, errRecord) {
		t.Errorf("UnmarshalBinary() of a dead letter of a later version = %v, want %v", err, errRecord)
	}
	empty, err := new(Delivery).AppendBinary(nil)
	must(t, err)
	const tries, closed, attempts = 13, 14, 15 // positions of these counts in empty, one byte each
	for _, tt := range []struct {
		name   string
		at     int    // position of the count
		n      uint64 // the new count
		behind []byte // bytes to insert after it
	}{
		{"with too many tries", tries, maxCount + 1, nil},
		{"with too many endpoints closed", closed, MaxEndpoints + 1, make([]byte, (MaxEndpoints+1)*9)},
		{"with too many attempts", attempts, MaxAttempts + 1, make([]byte, (MaxAttempts+1)*10)},
		{"with an attempt that took centuries", attempts, 1, append(binary.AppendUvarint([]byte{0}, math.MaxUint64), make([]byte, 8)...)},
	} {
		if empty[tt.at] != 0 {
			t.Fatalf("%s: byte %d of an empty record is %d, want the count 0", tt.name, tt.at, empty[tt.at])
		}
		b := binary.AppendUvarint(bytes.Clone(empty[:tt.at]), tt.n)
		bad(slices.Concat(b, tt.behind, empty[tt.at+1:]), tt.name)
	}
	bad([]byte{recordVersion, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}, "with a text of 2^64-1 bytes")
}

// FuzzDeliveryRecord checks that a record that can be read gives the same delivery or dead letter
// after it is written and read again.
func FuzzDeliveryRecord(f *testing.F) {
	traced := recordDelivery()
	traced.Trace = event.Trace{Parent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", State: "a=1"}
	for _, d := range []Delivery{{}, recordDelivery(), traced} {
		b, err := d.AppendBinary(nil)
		must(f, err)
		f.Add(b)
		b, err = (&Record{Delivery: d, Reason: ReasonDNS, At: d.Due}).AppendBinary(nil)
		must(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var d, again Delivery
		if d.UnmarshalBinary(b) == nil {
			if len(d.Body) > len(b) || len(d.Attempts) > MaxAttempts || len(d.Closed) > MaxEndpoints {
				t.Fatalf("%d bytes give a body of %d bytes, %d attempts and %d closed endpoints, want them within the limits", len(b), len(d.Body), len(d.Attempts), len(d.Closed))
			}
			c, err := d.AppendBinary(nil)
			if err != nil {
				t.Fatalf("AppendBinary() after UnmarshalBinary = %v, want nil", err)
			}
			if err := again.UnmarshalBinary(c); err != nil {
				t.Fatalf("UnmarshalBinary() after AppendBinary = %v, want nil", err)
			}
			if diff := cmp.Diff(d, again); diff != "" {
				t.Fatalf("read twice (-first +second):\n%s", diff)
			}
		}
		var dead, deadAgain Record
		if dead.UnmarshalBinary(b) == nil {
			c, err := dead.AppendBinary(nil)
			if err != nil {
				t.Fatalf("AppendBinary() after UnmarshalBinary = %v, want nil", err)
			}
			if err := deadAgain.UnmarshalBinary(c); err != nil {
				t.Fatalf("UnmarshalBinary() after AppendBinary = %v, want nil", err)
			}
			if diff := cmp.Diff(dead, deadAgain); diff != "" {
				t.Fatalf("read twice (-first +second):\n%s", diff)
			}
		}
	})
}

func BenchmarkDeliveryRecord(b *testing.B) {
	d := recordDelivery()
	d.Attempts, d.Closed = nil, nil
	d.Body = bytes.Repeat([]byte("b"), 450)
	record, err := d.AppendBinary(nil)
	must(b, err)
	b.Run("op=append", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(record)))
		buf := make([]byte, 0, 1024)
		for b.Loop() {
			buf, _ = d.AppendBinary(buf[:0])
		}
	})
	b.Run("op=read", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(record)))
		for b.Loop() {
			must(b, d.UnmarshalBinary(record))
		}
	})
}

// must ends the test if err is not nil.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
