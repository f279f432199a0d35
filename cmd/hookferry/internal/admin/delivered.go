package admin

import (
	"context"
	"net/http"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/webhook"
)

// errNoHistory says that the store keeps no delivered deliveries.
var errNoHistory = refuse(api.CodeNotFound, http.StatusNotFound, "", "delivered deliveries are not kept; history.maxAge keeps them in the store of the data folder")

func listDelivered(q *request) (any, error) {
	var f api.DeliveredFilter
	q.filter(&f)
	if q.config.Settings().History.MaxAge == 0 {
		return nil, errNoHistory
	}
	var answer api.Delivered
	var err error
	answer.Delivered, answer.After, err = page(q, q.config.Forwarder.Delivered(q.Context(), webhook.DeliveredFilter(f), q.param(api.ParamAfter)),
		func(d *webhook.Delivered) api.DeliveredDelivery {
			return api.DeliveredDelivery{Key: d.Key, Names: api.NamesOf(&d.Delivery), Accepted: d.Accepted, Delivered: d.At}
		},
		func(d *webhook.Delivered) string { return d.Key })
	return answer, err
}

func resend(q *request, f *api.DeliveredFilter) (any, error) {
	if q.config.Settings().History.MaxAge == 0 {
		return nil, errNoHistory
	}
	return nil, q.work(func(ctx context.Context, p *progress) error {
		return p.follow(q.config.Forwarder.Resend(ctx, webhook.DeliveredFilter(*f)))
	})
}
