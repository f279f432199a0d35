package portal

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hookferry/analytics/tenants"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/store"
)

const (
	maxReads     = 4                // lists of the store for a page of deliveries
	writeTimeout = 30 * time.Second // of each line of a long answer
	countTime    = 2 * time.Second  // for counting what a long request is about
)

// A delivery is a delivery of an endpoint, as customers see it.
type delivery struct {
	ID        string         `json:"id"` // the name of the endpoint, a dot, and the number of the delivery
	WebhookID string         `json:"webhookId"`
	Endpoint  string         `json:"endpoint"`
	Type      string         `json:"type"`
	State     webhook.State  `json:"state"`
	Reason    webhook.Reason `json:"reason,omitempty"` // why it was given up
	Accepted  time.Time      `json:"accepted"`
	Due       time.Time      `json:"due,omitzero"`     // of one that waits: when it is attempted next
	Expires   time.Time      `json:"expires,omitzero"` // of one that waits: when it is given up
	Ended     time.Time      `json:"ended,omitzero"`   // when it was delivered or given up
	Tries     int            `json:"tries"`
	Last      *attempt       `json:"last,omitempty"` // the latest request
}

// A wholeDelivery is all that is known of a delivery.
type wholeDelivery struct {
	delivery
	Attempts []attempt       `json:"attempts"`
	Body     json.RawMessage `json:"body"`
	Behind   *ahead          `json:"behind,omitempty"`
}

// An ahead describes the deliveries that a delivery waits behind.
type ahead struct {
	Count int       `json:"count"` // deliveries with the same key before it, as far as they were looked for
	First *delivery `json:"first"` // the one that they all wait for
}

// An attempt is one request.
type attempt struct {
	At      time.Time      `json:"at"`
	Took    float64        `json:"took"` // in milliseconds
	Try     int            `json:"try"`
	URL     string         `json:"url"`    // without user and query
	Status  int            `json:"status"` // 0 if there was no answer
	Reason  webhook.Reason `json:"reason,omitempty"`
	Batch   string         `json:"batch,omitempty"`   // the webhook-id of the batch
	Headers string         `json:"headers,omitempty"` // those of the request that change from one to another, a line each
	Error   string         `json:"error,omitempty"`
	Answer  string         `json:"answer,omitempty"` // the beginning of its body
}

func attemptOf(a *webhook.Attempt) attempt {
	return attempt{
		At: a.At.UTC(), Took: float64(a.Took) / 1e6, Try: a.Try, URL: a.Endpoint, Status: a.Status, Reason: a.Reason,
		Batch: a.Batch, Headers: a.Header, Error: a.Error, Answer: a.Answer,
	}
}

// A cursor says behind which delivery a page begins. It has a digest of the tenant, so that a
// cursor of another tenant is refused.
func (q *request) cursor(seq uint64) string {
	b := binary.BigEndian.AppendUint64(nil, seq)
	sum := sha256.Sum256(append(b, q.tenant...))
	return base64.RawURLEncoding.EncodeToString(append(b, sum[:8]...))
}

func (q *request) readCursor(text string) (uint64, error) {
	if text == "" {
		return 0, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(b) != 16 {
		return 0, errNotFound
	}
	seq := binary.BigEndian.Uint64(b)
	if q.cursor(seq) != text {
		return 0, errNotFound
	}
	return seq, nil
}

func listDeliveries(q *request) (any, error) {
	size, err := q.pageSize()
	if err != nil {
		return nil, err
	}
	query, err := q.query()
	if err != nil {
		return nil, err
	}
	after, err := q.readCursor(q.r.URL.Query().Get("after"))
	if err != nil {
		return nil, err
	}
	list := struct {
		Items []delivery `json:"items"`
		After string     `json:"after,omitempty"`
	}{Items: []delivery{}}
	for reads := 0; reads < maxReads && len(list.Items) < size; reads++ {
		page, next, err := q.h.config.Forwarder.List(q.r.Context(), query, after, size-len(list.Items))
		if err != nil {
			return nil, err
		}
		for i := range page {
			list.Items = append(list.Items, deliveryOf(&page[i]))
		}
		if after = next; next == 0 {
			return list, nil
		}
	}
	list.After = q.cursor(after)
	return list, nil
}

// query reads the parameters of a list. A list is always of one endpoint, so that the cost of a
// page depends on no other endpoint.
func (q *request) query() (query webhook.Query, err error) {
	values := q.r.URL.Query()
	name := values.Get("endpoint")
	if name == "" {
		return query, invalid("endpoint", "is required")
	}
	if !isName(name) {
		return query, errNotFound
	}
	query = webhook.Query{Destinations: []string{q.destination(name)}, Type: values.Get("type"), ID: values.Get("id"), Reason: webhook.Reason(values.Get("reason"))}
	for _, s := range values["state"] {
		if !slices.Contains(store.States(), webhook.State(s)) {
			return query, invalid("state", "%q is none of %q", s, store.States())
		}
		query.States = append(query.States, webhook.State(s))
	}
	if query.From, err = timeOf("from", values.Get("from")); err == nil {
		query.To, err = timeOf("to", values.Get("to"))
	}
	return query, err
}

func timeOf(field, text string) (t time.Time, err error) {
	if text == "" {
		return t, nil
	}
	if t, err = time.Parse(time.RFC3339, text); err != nil {
		return t, invalid(field, "has to be a time, such as 2026-03-01T12:00:00Z")
	}
	return t, nil
}

func deliveryOf(r *webhook.Record) delivery {
	_, name, _ := strings.Cut(r.Destination, "/")
	d := delivery{
		ID: name + "." + strconv.FormatUint(r.Seq, 10), WebhookID: r.ID, Endpoint: name, Type: r.Type, State: r.State,
		Accepted: r.Accepted.UTC(), Tries: r.Tries,
	}
	switch r.State {
	case webhook.StateDelivered, webhook.StateDead:
		d.Reason, d.Ended = r.Reason, r.At.UTC()
	case webhook.StateWaiting:
		d.Due = r.Due.UTC()
		fallthrough
	default:
		d.Expires = r.Expires.UTC()
	}
	if n := len(r.Attempts); n > 0 {
		d.Last = new(attemptOf(&r.Attempts[n-1]))
	}
	return d
}

// record reads the delivery that a path names.
func (q *request) record() (webhook.Record, error) {
	name, number, _ := strings.Cut(q.r.PathValue("delivery"), ".")
	seq, err := strconv.ParseUint(number, 10, 64)
	if err != nil || !isName(name) {
		return webhook.Record{}, errNotFound
	}
	return q.h.config.Forwarder.Delivery(q.r.Context(), webhook.Ref{Destination: q.destination(name), Seq: seq})
}

func getDelivery(q *request) (any, error) {
	r, err := q.record()
	if err != nil {
		return nil, err
	}
	whole := wholeDelivery{delivery: deliveryOf(&r), Attempts: []attempt{}, Body: r.Body}
	for i := range r.Attempts {
		whole.Attempts = append(whole.Attempts, attemptOf(&r.Attempts[i]))
	}
	if r.State == store.StateBehind {
		whole.Behind, err = q.ahead(q.r.Context(), &r)
	}
	return whole, err
}

// ahead looks for the deliveries that a delivery waits behind: earlier ones of its endpoint with
// its key.
func (q *request) ahead(ctx context.Context, of *webhook.Record) (*ahead, error) {
	query := webhook.Query{Destinations: []string{of.Destination}, States: store.Pending()}
	var a ahead
	after := of.Seq
	for range maxReads {
		page, next, err := q.h.config.Forwarder.List(ctx, query, after, maxPage)
		if err != nil {
			return nil, err
		}
		for i := range page {
			if page[i].Key == of.Key {
				a.Count++
				a.First = new(deliveryOf(&page[i]))
			}
		}
		if after = next; next == 0 {
			break
		}
	}
	if a.First == nil {
		return nil, nil
	}
	return &a, nil
}

func resendDelivery(q *request) (any, error) {
	err := q.read(&struct{}{})
	if err == nil {
		err = q.within(q.h.resends)
	}
	var r webhook.Record
	if err == nil {
		r, err = q.record()
	}
	if err != nil {
		return nil, err
	}
	p, err := q.h.config.Forwarder.Retry(q.r.Context(), r.Ref())
	if err != nil {
		return nil, err
	}
	q.changed(ActionResend, r.Destination, r.Seq)
	return p, nil
}

// A resent is a line of the answer to a long request.
type resent struct {
	webhook.Progress
	Total int      `json:"total,omitempty"` // how many there are in all; left out if counting takes long
	Ended bool     `json:"ended,omitempty"` // in the last line, if all was sent
	Error *failure `json:"error,omitempty"` // in the last line, if something went wrong
}

// resendFailed sends the deliveries again that were given up, or wait for their next attempt, of
// those accepted since a time. It answers with a line after each part, and ends with the request.
func resendFailed(q *request) (any, error) {
	var f struct {
		Since time.Time `json:"since"`
	}
	err := q.read(&f)
	if err == nil {
		err = q.within(q.h.resends)
	}
	var d tenants.Destination
	if err == nil {
		d, err = q.named()
	}
	if err != nil {
		return nil, err
	}
	if _, runs := q.h.resending.LoadOrStore(q.tenant, true); runs {
		return nil, tooMany(q.w, 10, "resending", "Deliveries are being sent again already.")
	}
	defer q.h.resending.Delete(q.tenant)
	q.leave()
	q.h.steps <- struct{}{}
	defer func() { <-q.h.steps }()
	q.w.Header().Set("Content-Type", "application/jsonl")
	var last resent
	query := webhook.Query{Destinations: []string{d.ID}, States: []webhook.State{webhook.StateDead, webhook.StateWaiting}, From: f.Since}
	within, cancel := context.WithTimeout(q.r.Context(), countTime)
	last.Total, err = q.h.config.Forwarder.Count(within, query)
	cancel()
	if err != nil {
		last.Total = 0
	}
	if q.between(last) != nil {
		return nil, nil // the reader is gone
	}
	for p, err := range q.h.config.Forwarder.RetryAll(q.r.Context(), query) {
		if last.Progress = p; err != nil {
			last.Error = failureOf(err)
			q.h.config.Logger.Error("portal: sending failed deliveries again stopped; the customer may ask for the rest", "destination", d.ID, "error", err)
			break
		}
		if q.between(last) != nil {
			break // the reader is gone
		}
	}
	q.changed(ActionResend, d.ID, 0)
	last.Ended = last.Error == nil
	_ = q.between(last)
	return nil, nil
}

// between sends a line between two commits. Meanwhile another request may use the store.
func (q *request) between(value resent) error {
	<-q.h.steps
	err := q.line(value)
	q.h.steps <- struct{}{}
	return err
}

// line sends one line of an answer at once.
func (q *request) line(value any) error {
	b, err := json.Marshal(value)
	if err != nil {
		return err
	}
	control := http.NewResponseController(q.w)
	_ = control.SetWriteDeadline(time.Now().Add(writeTimeout))
	if _, err = q.w.Write(append(b, '\n')); err == nil {
		err = control.Flush()
	}
	return err
}
