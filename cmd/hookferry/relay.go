package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
)

// A relay posts the events that a remote server accepts, one after the other, to one URL. If it is
// too slow, the server leaves out events and says how many.
type relay struct {
	printer   *printer
	to        *url.URL
	receiver  *webhook.Destination
	forwarder *webhook.Forwarder
}

func newRelay(to string, p *printer) (*relay, error) {
	if to == "" {
		return nil, usagef("--to: want the URL to post webhooks to, such as localhost:3000/hook")
	}
	if !strings.Contains(to, "://") {
		to = "http://" + to
	}
	u, err := webhook.ParseURL(to)
	switch {
	case err != nil:
		return nil, usagef("--to: %v", err)
	case u.User != nil:
		return nil, usagef("--to: want a URL without a user")
	}
	proxy, err := http.ProxyFromEnvironment(&http.Request{URL: u})
	if err != nil {
		return nil, err
	}
	d := webhook.Destination{ID: "to", Endpoints: []webhook.Endpoint{{URL: to}}, StandardSecrets: p.standard}
	if len(p.secrets) > 0 {
		d.Secret = p.secrets[0]
	}
	// If the Config has a function of its own for connections, the Forwarder does not use its
	// address guard.
	dial := p.command.process.dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	store, err := memqueue.Open(memqueue.Config{})
	if err != nil {
		return nil, err
	}
	f, err := webhook.New(webhook.Config{
		Store: store, Destinations: []webhook.Destination{d},
		ServiceName: "hookferry-listen", DialContext: dial, Proxy: proxy,
		Retries: &webhook.Retries{Timeout: webhook.MaxTimeout}, // somebody may watch the request in a debugger
	})
	if refused, ok := errors.AsType[*webhook.ConfigError](err); ok {
		of := "--to"
		switch {
		case refused.Field == "Proxy":
			of = "the proxy of the environment"
		case strings.Contains(refused.Field, "StandardSecrets"):
			of = "--standard-secret"
		}
		return nil, usagef("%s: %s", of, refused.Problem)
	}
	return &relay{printer: p, to: u, receiver: &d, forwarder: f}, err
}

// follow posts the events that the server accepts for the destination, until ctx is done. After it
// has begun, it reconnects when the server restarts.
func (r *relay) follow(ctx context.Context, destination string, announce io.Writer) error {
	// For an unknown destination, the server would send an empty stream instead of an error.
	if _, err := api.Do[api.Destination](ctx, r.printer.command.client, api.Request{Path: api.Path(api.DestinationPath, destination)}); err != nil {
		return err
	}
	filter := url.Values{api.ParamKind: {"accepted"}, api.ParamDestination: {destination}}
	began := false
	begun := func() {
		if !began {
			fmt.Fprintf(announce, "posting what %s accepts for %s to %s\n", r.printer.command.client.Host(), clean(destination), r.to.Scheme+"://"+r.to.Host+r.to.Path)
		}
		began = true
	}
	for {
		var ended error
		for live, err := range api.Stream[api.Live](ctx, r.printer.command.client, api.Request{Path: api.LivePath, Query: filter}, begun) {
			ended = err
			if live.Skipped > 0 {
				fmt.Fprintln(r.printer.command.process.stderr, counted(live.Skipped, "more event")+" left out: more happens than can be posted")
			}
			if live.Event != nil {
				filter.Set(api.ParamAfter, strconv.FormatUint(live.Event.Seq, 10))
				r.post(ctx, live.Event.ID, live.Event.Body)
			}
		}
		var refused *api.Error
		switch {
		case ctx.Err() != nil:
			return nil
		case !began || errors.As(ended, &refused) && refused.Code != api.CodeUnavailable:
			return ended
		}
		fmt.Fprintf(r.printer.command.process.stderr, "lost %s, trying again\n", r.printer.command.client.Host())
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return nil
		}
	}
}

// replay posts one delivery, with a good status or an error. The server does not change it.
func (r *relay) replay(ctx context.Context, key string) error {
	d, err := api.Do[api.Delivery](ctx, r.printer.command.client, api.Request{Path: deliveryPath(key, r.printer.command.client.Token())})
	if err != nil {
		return err
	}
	if status := r.post(ctx, d.ID, d.Body); status < 200 || status > 299 {
		return errors.New("the receiver did not accept it")
	}
	return nil
}

// post posts one event and prints the answer, whose status it returns. The webhook-id is the id of the event. The server itself
// sends a digest of the id and the source.
func (r *relay) post(ctx context.Context, id string, body []byte) (status int) {
	tried, err := r.forwarder.Try(ctx, r.receiver, event.Event{ID: id, Body: body})
	switch {
	case ctx.Err() != nil:
		return 0
	case err != nil:
		tried = []webhook.TryResult{{Attempt: webhook.Attempt{At: time.Now(), Error: err.Error()}}}
	}
	answer := "no answer: " + tried[0].Error
	if status = tried[0].Status; status != 0 {
		answer = fmt.Sprintf("answered %d %s", status, http.StatusText(status))
	}
	r.printer.print(received{At: tried[0].At, Answer: clean(answer) + " in " + millis(tried[0].Took)}, body)
	return status
}
