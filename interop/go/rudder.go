package main

import (
	"fmt"
	"sync"

	"github.com/rudderlabs/analytics-go/v4"
)

type rudderCallback struct {
	mu sync.Mutex
	result
}

func (c *rudderCallback) Success(analytics.Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent++
}

func (c *rudderCallback) Failure(_ analytics.Message, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed = err
}

func sendRudder(calls []call, endpoint, writeKey string) error {
	callback := new(rudderCallback)
	client, err := analytics.NewWithConfig(writeKey, analytics.Config{Endpoint: endpoint, BatchSize: 20, Callback: callback})
	if err != nil {
		return err
	}
	for _, c := range calls {
		message, err := rudderMessage(c)
		if err == nil {
			err = client.Enqueue(message)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.Type, err)
		}
	}
	if err := client.Close(); err != nil {
		return err
	}
	return callback.check(len(calls))
}

func rudderMessage(c call) (analytics.Message, error) {
	var context *analytics.Context
	if c.Context != nil {
		context = &analytics.Context{Extra: c.Context}
	}
	switch c.Type {
	case "identify":
		return analytics.Identify{UserId: c.UserID, AnonymousId: c.AnonymousID, Traits: c.Traits,
			Context: context, Integrations: c.Integrations, OriginalTimestamp: c.Timestamp}, nil
	case "track":
		return analytics.Track{UserId: c.UserID, AnonymousId: c.AnonymousID, Event: c.Event, Properties: c.Properties,
			Context: context, Integrations: c.Integrations, OriginalTimestamp: c.Timestamp}, nil
	case "page":
		return analytics.Page{UserId: c.UserID, AnonymousId: c.AnonymousID, Name: c.Name, Properties: c.Properties,
			Context: context, Integrations: c.Integrations, OriginalTimestamp: c.Timestamp}, nil
	case "screen":
		return analytics.Screen{UserId: c.UserID, AnonymousId: c.AnonymousID, Name: c.Name, Properties: c.Properties,
			Context: context, Integrations: c.Integrations, OriginalTimestamp: c.Timestamp}, nil
	case "group":
		return analytics.Group{UserId: c.UserID, AnonymousId: c.AnonymousID, GroupId: c.GroupID, Traits: c.Traits,
			Context: context, Integrations: c.Integrations, OriginalTimestamp: c.Timestamp}, nil
	case "alias":
		return analytics.Alias{UserId: c.UserID, PreviousId: c.PreviousID,
			Context: context, Integrations: c.Integrations, OriginalTimestamp: c.Timestamp}, nil
	}
	return nil, fmt.Errorf("unknown type")
}
