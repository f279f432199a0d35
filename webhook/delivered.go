package webhook

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"iter"

	"github.com/hookferry/analytics/event"
)

// Delivered yields the deliveries in the store's History that filter selects, as History.Delivered
// does. The error is ErrUnsupported if the store has no History.
func (f *Forwarder) Delivered(ctx context.Context, filter DeliveredFilter, after string) iter.Seq2[Delivered, error] {
	h, ok := f.config.Store.(History)
	if !ok {
		return func(yield func(Delivered, error) bool) { yield(Delivered{}, ErrUnsupported) }
	}
	return h.Delivered(ctx, filter, after)
}

// resendChunk is how many deliveries one commit resends at most. Their bodies have up to 4 MB.
const resendChunk = 4 << 20 / maxTransformed

// Resend sends again the deliveries in the store's History that filter selects. Each becomes a new
// delivery with the same body and an ID of its own, so a receiver that deduplicates by webhook-id
// takes it. Resend leaves out deliveries that were delivered after the loop began, and copies that
// an earlier Resend has made. It works as ReplayAll does. The error is ErrUnsupported if the store
// has no History, ErrClosed after Shutdown, or another error of Forward.
func (f *Forwarder) Resend(ctx context.Context, filter DeliveredFilter) iter.Seq2[int, error] {
	again := func(yield func(Put, error) bool) {
		filter := filter
		filter.To = earlierEnd(filter.To, f.now())
		for d, err := range f.Delivered(ctx, filter, "") {
			if err == nil && d.ID != deliveryID(&event.Event{ID: d.MessageID, Source: d.Source}) {
				continue // d is a copy that an earlier Resend has made
			}
			now := f.now().UTC()
			sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte(d.ID), uint64(now.UnixNano())))
			if !yield(Put{NoDedup: true, Delivery: Delivery{
				Destination: d.Destination, ID: base64.RawURLEncoding.EncodeToString(sum[:18]), MessageID: d.MessageID, Source: d.Source, User: d.User, Event: d.Event,
				Type: d.Type, Body: d.Body, Accepted: now, Due: now, Trace: d.Trace,
			}}, err) {
				return
			}
		}
	}
	var b batch
	return inChunks(again, resendChunk, func(ps []Put) (int, error) {
		if f.open.Err() != nil {
			return 0, ErrClosed
		}
		b.puts = ps
		return f.put(ctx, &b)
	})
}
