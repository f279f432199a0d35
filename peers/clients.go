package main

import (
	"errors"
	"fmt"
	"time"

	ours "github.com/hookferry/analytics"
	"github.com/posthog/posthog-go"
	rudder "github.com/rudderlabs/analytics-go/v4"
	segment "github.com/segmentio/analytics-go/v3"
)

// A client is one of the clients that are measured.
type client interface {
	// track makes one call. No other goroutine uses the map properties, so the client may write to
	// it. track returns errFull if the queue of the client is full.
	track(properties map[string]any) error
	// close delivers the queued events.
	close() error
}

var errFull = errors.New("the queue is full")

// A contender is a client to measure, with its name. All contenders have the same batch size, no
// compression and no log. All other settings are the defaults of the clients' makers.
type contender struct {
	name   string
	module string // the path of its module; the benchmark prints the version
	open   func(url string, batch int) (client, error)
}

// The first contender is this module's client.
var contenders = []contender{
	{"hookferry", "github.com/hookferry/analytics", openOurs},
	{"segment", "github.com/segmentio/analytics-go/v3", openSegment},
	{"rudder", "github.com/rudderlabs/analytics-go/v4", openRudder},
	{"posthog", "github.com/posthog/posthog-go", openPosthog},
}

func contenderNamed(name string) (contender, error) {
	for _, c := range contenders {
		if c.name == name {
			return c, nil
		}
	}
	return contender{}, fmt.Errorf("no client is named %q", name)
}

const (
	userID    = "u-2041"
	eventName = "Order Completed"
)

// tenProperties are properties as a busy shop sends them: text, numbers of every kind, a
// flag, a time, a list and an object.
func tenProperties() map[string]any {
	return map[string]any{
		"order_id": "ord_4f8b2c9e",
		"total":    129.95,
		"currency": "EUR",
		"items":    3,
		"coupon":   nil,
		"express":  true,
		"customer": int64(8675309),
		"placed":   time.Date(2026, 3, 4, 5, 6, 7, 891e6, time.UTC),
		"tags":     []string{"spring", "returning", "mobile"},
		"shipping": map[string]any{"city": "Tromsø", "zip": "9008"},
	}
}

type ourClient struct{ *ours.Client }

func openOurs(url string, batch int) (client, error) {
	c := ours.New("key")
	c.Endpoint, c.FlushAt = url, batch
	return ourClient{c}, nil
}

func (c ourClient) track(properties map[string]any) error {
	err := c.Track(&ours.Track{UserId: userID, Event: eventName, Properties: properties})
	if err == ours.ErrQueueFull {
		return errFull
	}
	return err
}

func (c ourClient) close() error { return c.Close() }

type segmentClient struct{ segment.Client }

func openSegment(url string, batch int) (client, error) {
	c, err := segment.NewWithConfig("key", segment.Config{Endpoint: url, BatchSize: batch, Logger: silent{}})
	return segmentClient{c}, err
}

func (c segmentClient) track(properties map[string]any) error {
	return c.Enqueue(segment.Track{UserId: userID, Event: eventName, Properties: properties})
}

func (c segmentClient) close() error { return c.Close() }

type rudderClient struct{ rudder.Client }

func openRudder(url string, batch int) (client, error) {
	c, err := rudder.NewWithConfig("key", rudder.Config{DataPlaneUrl: url, BatchSize: batch, DisableGzip: true, Logger: silent{}})
	return rudderClient{c}, err
}

func (c rudderClient) track(properties map[string]any) error {
	return c.Enqueue(rudder.Track{UserId: userID, Event: eventName, Properties: properties})
}

func (c rudderClient) close() error { return c.Close() }

type posthogClient struct{ posthog.Client }

func openPosthog(url string, batch int) (client, error) {
	c, err := posthog.NewWithConfig("key", posthog.Config{Endpoint: url, BatchSize: batch, Logger: silent{}})
	return posthogClient{c}, err
}

func (c posthogClient) track(properties map[string]any) error {
	err := c.Enqueue(posthog.Capture{DistinctId: userID, Event: eventName, Properties: properties})
	if errors.Is(err, posthog.ErrQueueFull) {
		return errFull
	}
	return err
}

func (c posthogClient) close() error { return c.Close() }

// silent is a logger that drops everything. It implements the logger interfaces of all contenders.
type silent struct{}

func (silent) Debugf(string, ...any) {}
func (silent) Logf(string, ...any)   {}
func (silent) Warnf(string, ...any)  {}
func (silent) Errorf(string, ...any) {}
