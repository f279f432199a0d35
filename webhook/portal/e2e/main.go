// Command e2e serves the portal for tests in a browser: below /app/webhooks/ with the customer's
// choice of a theme, and below /fixed/webhooks/ dark, to read only and with other words. The tenant
// is the value of the cookie "tenant", acme without one. A POST of /send?type=T&n=N sends events to
// acme. It ends with its standard input.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/tenants"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/portal"
)

var thisMachine = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}

func main() {
	folder := must(os.MkdirTemp("", "portal"))
	defer os.RemoveAll(folder)
	ctx := context.Background()
	store := must(filequeue.Open(folder, filequeue.Config{HistoryAge: webhook.Unlimited}))
	directory := must(tenants.New(store, tenants.Config{AllowAddresses: thisMachine}))
	for _, id := range []string{"acme", "globex"} {
		must(directory.CreateTenant(ctx, tenants.Tenant{ID: id}, "setup"))
	}
	forwarder := must(webhook.New(webhook.Config{Store: store, Directory: directory, AllowAddresses: thisMachine}))
	go forwarder.Run(ctx) // until Shutdown
	config := portal.Config{
		Forwarder: forwarder, Tenants: directory, Tenant: tenantOf, Catalogue: catalogue(), Name: "Acme webhooks", Schemes: []string{"http", "https"},
	}
	http.Handle("/app/webhooks/", http.StripPrefix("/app/webhooks", must(portal.Handler(config))))
	config.Theme, config.AccentDark, config.ReadOnly, config.Language = portal.ThemeDark, "#ffb74d", true, "de"
	config.Logo = []byte(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 60 20"><rect width="60" height="20" fill="#ffb74d"/></svg>`)
	config.Words = map[string]string{"Endpoints": "Endpunkte", "Your URLs that are told of events.": "Ihre URLs, die Ereignisse erhalten."}
	http.Handle("/fixed/webhooks/", http.StripPrefix("/fixed/webhooks", must(portal.Handler(config))))
	http.HandleFunc("POST /send", func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.URL.Query().Get("n"))
		for range max(n, 1) {
			must(forwarder.Send(r.Context(), "acme", &event.Custom{Type: r.URL.Query().Get("type"), Data: map[string]any{"id": "inv-7", "note": "<script>alert(1)</script>"}}))
		}
	})
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	fmt.Println("listening on http://" + listener.Addr().String())
	go http.Serve(listener, nil) // until the process ends
	io.Copy(io.Discard, os.Stdin)
	check(errors.Join(forwarder.Shutdown(ctx), store.Close()))
}

func tenantOf(r *http.Request) (tenant, actor string, err error) {
	cookie, err := r.Cookie("tenant")
	if err != nil {
		return "acme", "ann", nil
	}
	if cookie.Value == "nobody" {
		return "", "", errors.New("no session")
	}
	return cookie.Value, "bob", nil
}

func catalogue() *event.Catalogue {
	invoice := map[string]any{"id": "inv-7", "customer": "Globex", "total": 1250.5, "currency": "EUR"}
	return must(event.NewCatalogue(
		event.Type{Type: "customer.created", Description: "A customer has signed up.", Example: map[string]any{"id": "cus-1", "name": "Globex"}},
		event.Type{Type: "invoice.created", Description: "An invoice was made, but not sent yet.", Example: invoice},
		event.Type{Type: "invoice.paid", Description: "The customer has paid an invoice in full.", Example: invoice},
		event.Type{Type: "invoice.voided", Description: "An invoice is not valid any more.", Example: invoice},
		event.Type{Type: "order.shipped", Description: "An order has left the warehouse.", Example: map[string]any{"id": "order-3", "parcel": "1Z999AA1"}}))
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
