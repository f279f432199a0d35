package admin

import (
	"net/http"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/webhook"
)

// waiting serves what waits: to look at, to attempt now, or to forget.
type waiting struct{ *Handler }

// list answers with a page of what waits for a destination, be it known or not.
func (h waiting) list(w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r, api.ParamDestination, api.ParamID, api.ParamUser, api.ParamEvent, api.ParamLimit, api.ParamAfter)
	filter := webhook.WaitingFilter{Destination: q.required(api.ParamDestination), ID: q.text(api.ParamID), User: q.text(api.ParamUser), Event: q.text(api.ParamEvent)}
	limit := q.number(api.ParamLimit, defaultPage, maxPage)
	after := q.text(api.ParamAfter)
	if q.err != nil {
		return q.err
	}
	page := api.Waiting{Waiting: []api.WaitingDelivery{}}
	last := ""
	for d, err := range h.config.Forwarder.Waiting(r.Context(), filter, after) {
		if err != nil {
			return err
		}
		if len(page.Waiting) == limit {
			page.After = last
			break
		}
		page.Waiting = append(page.Waiting, waitingDelivery(&d))
		last = d.ID
	}
	return writeJSON(w, http.StatusOK, page)
}

func waitingDelivery(d *webhook.Delivery) api.WaitingDelivery {
	now := api.WaitingDelivery{
		ID: d.MessageID, Source: d.Source, User: d.User, Event: d.Event, Type: d.Type,
		Accepted: d.Accepted, Due: d.Due, Tries: d.Tries,
	}
	if !d.Expires.IsZero() {
		now.Expires = &d.Expires
	}
	if n := len(d.Attempts); n > 0 {
		last := api.AttemptOf(&d.Attempts[n-1])
		now.Last = &last
	}
	return now
}

func (h waiting) retry(w http.ResponseWriter, r *http.Request) error {
	return h.change(w, r, webhook.DueNow)
}

func (h waiting) discard(w http.ResponseWriter, r *http.Request) error {
	return h.change(w, r, webhook.Discarded)
}

// change makes a change to the deliveries that wait and that the filter in the body selects.
func (h waiting) change(w http.ResponseWriter, r *http.Request, to webhook.Change) error {
	if q := queryOf(r); q.err != nil {
		return q.err
	}
	var f api.WaitingFilter
	if err := readJSON(w, r, &f); err != nil {
		return err
	}
	if f.Destination == "" {
		return badRequest(api.ParamDestination, "destination is missing")
	}
	n, claimed, err := h.config.Forwarder.ChangeWaiting(r.Context(), webhook.WaitingFilter(f), to)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, api.Changed{Changed: n, Claimed: claimed})
}
