package admin

import (
	"context"
	"net/http"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/webhook"
)

// delivered serves what was delivered and is kept: to look at, and to send again.
type delivered struct{ *Handler }

// errNoHistory says that the store keeps nothing that was delivered.
var errNoHistory = refuse(api.CodeNotFound, http.StatusNotFound, "", "nothing that was delivered is kept; history.maxAge has the store in the data folder keep it")

// list answers with a page of it.
func (h delivered) list(w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r, api.ParamDestination, api.ParamID, api.ParamUser, api.ParamFrom, api.ParamTo, api.ParamLimit, api.ParamAfter)
	filter := webhook.DeliveredFilter{
		Destination: q.text(api.ParamDestination), MessageID: q.text(api.ParamID), User: q.text(api.ParamUser),
		From: q.time(api.ParamFrom), To: q.time(api.ParamTo),
	}
	limit := q.number(api.ParamLimit, defaultPage, maxPage)
	after := q.text(api.ParamAfter)
	if q.err != nil {
		return q.err
	}
	if h.config.Settings().History.MaxAge == 0 {
		return errNoHistory
	}
	page := api.Delivered{Delivered: []api.DeliveredDelivery{}}
	for d, err := range h.config.Forwarder.Delivered(r.Context(), filter, after) {
		if err != nil {
			return err
		}
		if len(page.Delivered) == limit {
			page.After = page.Delivered[limit-1].Key
			break
		}
		page.Delivered = append(page.Delivered, api.DeliveredDelivery{
			Key: d.Key, Destination: d.Destination, ID: d.MessageID, Source: d.Source, User: d.User, Event: d.Event, Type: d.Type,
			Accepted: d.Accepted, Delivered: d.At,
		})
	}
	return writeJSON(w, http.StatusOK, page)
}

// resend sends again what a filter selects.
func (h delivered) resend(w http.ResponseWriter, r *http.Request) error {
	if q := queryOf(r); q.err != nil {
		return q.err
	}
	var f api.DeliveredFilter
	if err := readJSON(w, r, &f); err != nil {
		return err
	}
	if h.config.Settings().History.MaxAge == 0 {
		return errNoHistory
	}
	return h.work(w, r, func(ctx context.Context, p *progress) error {
		filter := webhook.DeliveredFilter{Destination: f.Destination, MessageID: f.ID, User: f.User, From: value(f.From), To: value(f.To)}
		for done, err := range h.config.Forwarder.Resend(ctx, filter) {
			p.reach(done)
			if err != nil {
				return err
			}
		}
		return nil
	})
}
