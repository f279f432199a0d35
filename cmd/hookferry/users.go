package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

func deleteUsers(c *command) action {
	id := c.String("id", "", "`name` of the request; under the same name it is the same request")
	sources := c.StringArray("source", nil, "`name` of a source that is affected; may be repeated; all, if it is left out")
	file := c.String("file", "", "`file` of users, one a line; - is standard input")
	return c.admin(func(ctx context.Context) error {
		if (len(c.args) == 0) == (*file == "") {
			return usagef("want ids of users, or --file; one of them")
		}
		r := api.Request{Method: http.MethodPost, Path: api.DeletionsPath, Body: api.Deletion{ID: *id, Users: c.args, Sources: *sources}}
		var part func() float64
		if *file != "" {
			users, err := c.open(*file)
			if err != nil {
				return err
			}
			defer users.Close()
			part, r.Body = users.part, users
			r.Query = url.Values{api.ParamSource: *sources}
			if *id != "" {
				r.Query.Set(api.ParamID, *id)
			}
		}
		end, err := c.work(ctx, "told", part, r)
		if err != nil || c.json {
			return err
		}
		return c.print(end, "deletion of %s on its way", counted(end.Done, "user"))
	})
}

func eraseUsers(c *command) action {
	c.yesFlag()
	return c.admin(func(ctx context.Context) error {
		if err := c.confirm(ctx, "erase what is stored of %s?", counted(len(c.args), "user")); err != nil {
			return err
		}
		for _, user := range c.args {
			r := api.Request{Method: http.MethodPost, Path: api.ErasuresPath, Body: api.Erasure{User: user}, Timeout: api.StoreTimeout}
			e, err := api.Do[api.Erased](ctx, c.client, r)
			if err != nil {
				return fmt.Errorf("%s: %w", user, err)
			}
			left := ""
			if e.Claimed > 0 {
				left = fmt.Sprintf(", %d left that are being attempted; say it again", e.Claimed)
			}
			if err := c.print(e, "%s: %d erased%s", user, e.Erased, left); err != nil {
				return err
			}
		}
		return nil
	})
}
