package webhookprom_test

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/webhookprom"
)

func Example() {
	store, err := memqueue.Open(memqueue.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	destinations := []webhook.Destination{{ID: "acme", Endpoints: []webhook.Endpoint{{URL: "https://acme.example/hook"}}}}
	registry := prometheus.NewRegistry() // or prometheus.DefaultRegisterer

	metrics := webhookprom.New()
	forwarder, err := webhook.New(webhook.Config{
		Store: store, Destinations: destinations, Observers: []webhook.Observer{metrics},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	registry.MustRegister(metrics.Collector(forwarder))

	err = forwarder.Forward(context.Background(), "acme", &analytics.Track{UserId: "u1", Event: "Signed Up"})
	if err != nil {
		fmt.Println(err)
	}
	families, err := registry.Gather() // as a handler of promhttp does
	for _, f := range families {
		if f.GetName() == "hookferry_deliveries_waiting" {
			m := f.GetMetric()[0]
			fmt.Println(m.GetLabel()[0].GetValue(), m.GetGauge().GetValue())
		}
	}
	fmt.Println(err)
	// Output:
	// acme 1
	// <nil>
}
