package webhook

import (
	"crypto/sha256"
	"encoding/base64"
	"hash/maphash"
	"net/http"
	"slices"
	"time"

	"github.com/hookferry/analytics/check"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook/internal/schedule"
)

const (
	maxBatchEvents = signature.MaxBatch
	maxBatchBytes  = 1 << 20
	maxBatchWait   = 10 * time.Second
)

// A Batch lets a request have several deliveries of a destination, which must have exactly one
// endpoint. Its body is a JSON array, in the order of Delivery.Seq, which signature.Events reads:
//
//	[{"id":"...","event":{...}},{"id":"...","event":{...}}]
//
// An id is the webhook-id that a request with this event alone would have. The webhook-id of the batch
// is the base64url, without padding, of the first 18 bytes of a SHA-256 of all ids in their order,
// each followed by a line feed. So equal batches have equal ids. The signatures are those of the
// whole body. There is no traceparent, unless it is static: the events belong to several traces.
//
// The answer is about all deliveries of the request. After a failure that may pass, they are
// attempted together again, each until its retry window ends. Other retries that are due join them
// as far as they fit, so the batch may have another id. After a restart or on another node, other
// groups may form. A refusal by a 4xx, such as a 413, divides the batch in two, which are attempted
// on their own, until the deliveries at fault stand alone: only these become dead letters, or are
// repeated, alone, as Retries says. One delivery at fault among n costs about 2*log2(n) more
// requests, and n of them cost 2n-1 requests in all. If a receiver answers 413 often, lower
// MaxBytes. A 401, 403, 404 or 410 is about the endpoint, so it counts for all deliveries.
//
// Deliveries that do not fill a batch wait in the store for MaxWait, from the time at which the
// first of them is due. Until then, only deliveries that this node has stored help to fill the
// batch. A stop sends one batch of each destination at once, as far as slots are free. Retries, and
// the first delivery after a minute without any, do not wait.
type Batch struct {
	MaxEvents int `json:"maxEvents,omitempty"` // deliveries of a request, up to 1,000; zero: no batches
	// MaxBytes bounds the body of a request, up to 1 MiB. A larger event comes alone, in an
	// array all the same. Zero means 1 MiB.
	MaxBytes int `json:"maxBytes,omitempty"`
	// MaxWait is up to 10 s. Zero means that a request has the deliveries that wait when a
	// slot is free.
	MaxWait time.Duration `json:"maxWait,omitempty"`
}

// check returns the limits of b, for a destination with this many endpoints.
func (b Batch) check(endpoints int, wrong *check.Faults) schedule.Batch {
	if b.MaxEvents == 0 {
		wrong.Refuse(b != Batch{}, "Batch.MaxEvents", "is required for a batch")
		return schedule.Batch{}
	}
	check.Range(wrong, "Batch.MaxEvents", &b.MaxEvents, 1, maxBatchEvents, 0)
	check.Range(wrong, "Batch.MaxBytes", &b.MaxBytes, 1, maxBatchBytes, maxBatchBytes)
	check.Range(wrong, "Batch.MaxWait", &b.MaxWait, 0, maxBatchWait, 0)
	wrong.Refuse(endpoints > 1, "Batch", "needs exactly one endpoint, and the destination has %d", endpoints)
	const bracket = 1 // at the start of the body; batchPart counts the rest
	return schedule.Batch{Events: b.MaxEvents, Bytes: int64(b.MaxBytes) - bracket, Wait: b.MaxWait}
}

const (
	beforeID, beforeEvent, afterEvent = `{"id":"`, `","event":`, `},` // the last one ends with "]" instead of the comma

	batchFrame = len(beforeID) + len(beforeEvent) + len(afterEvent)
)

// batchPart returns how many bytes d takes in the body of a batch, without the bracket at its start.
func batchPart(d *Delivery) int64 {
	n := batchFrame + len(d.Body)
	for i := range len(d.ID) {
		n += int(idWidth[d.ID[i]])
	}
	return int64(n)
}

// idWidth is how many bytes each byte of an ID takes in the body of a batch.
var idWidth = func() (width [256]uint8) {
	for c := range width {
		switch {
		case escapedInID(rune(c)):
			width[c] = 3
		case c == '"' || c == '\\':
			width[c] = 2
		default:
			width[c] = 1
		}
	}
	return width
}()

// appendBatch appends the body of a batch to body, and the ids of its deliveries to ids.
func appendBatch(body, ids []byte, ds []*Delivery) (_, _ []byte) {
	size := int64(1)
	for _, d := range ds {
		size += batchPart(d)
	}
	body = append(slices.Grow(body, int(size)), '[')
	for _, d := range ds {
		from := len(ids)
		ids = appendStandardID(ids, d.ID)
		body = append(body, beforeID...)
		for _, c := range ids[from:] {
			if c == '"' || c == '\\' {
				body = append(body, '\\')
			}
			body = append(body, c)
		}
		ids = append(ids, '\n')
		body = append(body, beforeEvent...)
		body = append(body, d.Body...)
		body = append(body, afterEvent...)
	}
	body[len(body)-1] = ']'
	return body, ids
}

// batchID returns the webhook-id of a batch with these ids, as appendBatch writes them.
func batchID(ids []byte) string {
	sum := sha256.Sum256(ids)
	var id [24]byte
	base64.RawURLEncoding.Encode(id[:], sum[:18])
	return string(id[:])
}

var groupSeed = maphash.MakeSeed()

// groupOf returns the schedule.Item.Group of d, which all deliveries of its latest batch have, and
// Item.Apart. A replayed delivery, which has no tries, has none.
func groupOf(d *Delivery) (group uint64, apart bool) {
	n := len(d.Attempts)
	if d.Tries == 0 || n == 0 || d.Attempts[n-1].Batch == "" {
		return 0, false
	}
	a := &d.Attempts[n-1]
	return maphash.String(groupSeed, a.Batch), refusesEvents(a)
}

// refusesEvents reports whether the answer to a batch may be about single events of it, so that
// others have a chance without them. The answers left out are about the endpoint.
func refusesEvents(a *Attempt) bool {
	switch a.Status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusGone:
		return false
	}
	return a.Reason == ReasonRefused
}
