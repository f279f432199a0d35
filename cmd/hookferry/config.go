package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
)

const (
	configHelp = `Config is about the file of 'hookferry serve --config FILE'.

Examples:
  hookferry config example > hookferry.yaml
  hookferry config check hookferry.yaml
`
	configCheckHelp = `Check reads a configuration file as serve would, with the files that it names
and this environment, and prints everything that is wrong with it, and no
secret. The exit status is 1 if something is wrong.

Examples:
  hookferry config check hookferry.yaml
`
	configExampleHelp = `Example prints a configuration file that explains every key.

Examples:
  hookferry config example > hookferry.yaml
`
)

// errConfig says that check found something; what, it has printed.
var errConfig = errors.New("the configuration would not be used")

func checkConfig(o *options) action {
	asJSON := jsonFlag(o)
	o.noVariables()
	return func(_ context.Context, args []string, p process) error {
		if len(args) != 1 {
			return usagef("want one file")
		}
		s, err := config.Load(args[0], p.getenv, nil)
		var wrong *config.Error
		if err != nil && !errors.As(err, &wrong) {
			return err
		}
		checked := configChecked{File: args[0], OK: err == nil, Problems: []config.Problem{}}
		if err == nil {
			checked.Sources, checked.Destinations = len(s.Sources), len(s.Destinations)
		} else {
			checked.Problems = wrong.Problems
		}
		if *asJSON {
			if err := json.NewEncoder(p.stdout).Encode(checked); err != nil {
				return err
			}
		} else if err == nil {
			fmt.Fprintf(p.stdout, "%s: good; sources: %d, destinations: %d\n", args[0], checked.Sources, checked.Destinations)
		} else {
			fmt.Fprintln(p.stdout, wrong)
		}
		if err != nil {
			return errConfig
		}
		return nil
	}
}

// A configChecked is what check prints as JSON.
type configChecked struct {
	File         string           `json:"file"`
	OK           bool             `json:"ok"`
	Sources      int              `json:"sources"`
	Destinations int              `json:"destinations"`
	Problems     []config.Problem `json:"problems"`
}

func exampleConfig(*options) action {
	return func(_ context.Context, _ []string, p process) error {
		_, err := io.WriteString(p.stdout, config.Example())
		return err
	}
}
