package webhook

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"iter"

	"github.com/hookferry/analytics/event"
)

// Delivered yields the deliveries that filter selects of those that were delivered and that the
// store keeps, the latest first, from the one after the one whose Key is after ("" for the first).
// An error ends it: ErrUnsupported if the store has no History.
func (f *Forwarder) Delivered(ctx context.Context, filter DeliveredFilter, after string) iter.Seq2[Delivered, error] {
	h, ok := f.config.Store.(History)
	if !ok {
		return func(yield func(Delivered, error) bool) { yield(Delivered{}, ErrUnsupported) }
	}
	return h.Delivered(ctx, filter, after)
}

// Resend sends deliveries again that filter selects of those that were delivered before the call
// and that the store keeps. Each is a delivery of its own, with an ID of its own, so that receivers
// which deduplicate by webhook-id take it; the body is the same. What Resend itself has sent before
// is left out. After each commit Resend yields how many there were so far. An error comes with that
// number, and is the last thing yielded: ErrUnsupported if the store has no History, ErrClosed
// after Shutdown, or as of Forward. What was yielded is durable.
func (f *Forwarder) Resend(ctx context.Context, filter DeliveredFilter) iter.Seq2[int, error] {
	return func(yield func(int, error) bool) {
		if now := f.now(); filter.To.IsZero() || filter.To.After(now) {
			filter.To = now
		}
		total, bytes := 0, 0
		var space putSpace
		var ps []Put
		flush := func() bool {
			n, err := 0, error(ErrClosed)
			if f.open.Err() == nil {
				n, err = f.put(ctx, ps, &space)
			}
			total += n
			ps, bytes = ps[:0], 0
			return yield(total, err) && err == nil
		}
		for d, err := range f.Delivered(ctx, filter, "") {
			if err != nil {
				yield(total, err)
				return
			}
			if d.ID != deliveryID(&event.Event{ID: d.MessageID, Source: d.Source}) {
				continue // was sent again
			}
			now := f.now().UTC()
			ps = append(ps, Put{NoDedup: true, Delivery: Delivery{
				Destination: d.Destination, ID: resendID(d.ID, now.UnixNano()), MessageID: d.MessageID, Source: d.Source, User: d.User, Event: d.Event,
				Type: d.Type, Body: d.Body, Accepted: now, Due: now, Trace: d.Trace,
			}})
			if bytes += len(d.Body); (len(ps) == replayChunk || bytes >= resendBytes) && !flush() {
				return
			}
		}
		if len(ps) > 0 {
			flush()
		}
	}
}

// resendBytes is about how many bytes of bodies are sent again in one commit.
const resendBytes = 4 << 20

// resendID returns an ID for a delivery that is sent again.
func resendID(id string, now int64) string {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte(id), uint64(now)))
	return base64.RawURLEncoding.EncodeToString(sum[:18])
}
