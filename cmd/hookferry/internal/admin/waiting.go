package admin

import (
	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/webhook"
)

// listWaiting answers with a page of the waiting deliveries of a destination. The destination may
// be missing from the settings.
func listWaiting(q *request) (any, error) {
	var f api.WaitingFilter
	q.filter(&f)
	var answer api.Waiting
	var err error
	answer.Waiting, answer.After, err = page(q, q.config.Forwarder.Waiting(q.Context(), webhook.WaitingFilter(f), q.param(api.ParamAfter)),
		waitingDelivery, func(d *webhook.Delivery) string { return d.ID })
	return answer, err
}

func waitingDelivery(d *webhook.Delivery) api.WaitingDelivery {
	w := api.WaitingDelivery{
		Names: api.NamesOf(d), Accepted: d.Accepted, Due: d.Due, Expires: d.Expires.UTC(), Tries: d.Tries,
	}
	if n := len(d.Attempts); n > 0 {
		last := api.AttemptOf(&d.Attempts[n-1])
		w.Last = &last
	}
	return w
}

func retryWaiting(q *request, f *api.WaitingFilter) (any, error) {
	return changeWaiting(q, f, webhook.DueNow)
}

func discardWaiting(q *request, f *api.WaitingFilter) (any, error) {
	return changeWaiting(q, f, webhook.Discarded)
}

func changeWaiting(q *request, f *api.WaitingFilter, to webhook.Change) (any, error) {
	if f.Destination == "" {
		return nil, badRequest(api.ParamDestination, "destination is missing")
	}
	n, claimed, err := q.config.Forwarder.ChangeWaiting(q.Context(), webhook.WaitingFilter(*f), to)
	return api.Changed{Changed: n, Claimed: claimed}, err
}
