package check

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/google/go-cmp/cmp"
)

// TestComposeFilesLoadAndServe loads each set of files by the schema of Compose, as docker compose
// does. The server starts with the environment of the files.
func TestComposeFilesLoadAndServe(t *testing.T) {
	const base = "../compose.yaml"
	guide, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	started := regexp.MustCompile(`(?m)^docker compose (.*) up --build`).FindAllSubmatch(guide, -1)
	if len(started) != 3 {
		t.Errorf("the guide has %d commands of docker compose, want one for each test below", len(started))
	}
	for _, tt := range []struct {
		store    string // STORE in ../compose.STORE.yaml; "" for the file store
		services []string
		queue    string // beginning of the URL of the store
	}{
		{"", []string{"hookferry", "listen"}, ""},
		{"postgres", []string{"hookferry", "listen", "postgres"}, "postgres://"},
		{"nats", []string{"hookferry", "listen", "nats"}, "nats://"},
	} {
		t.Run("store="+tt.store, func(t *testing.T) {
			files := []string{base}
			if tt.store != "" {
				files = append(files, filepath.Join("..", "compose."+tt.store+".yaml"))
			}
			command := strings.ReplaceAll("-f "+strings.Join(files, " -f "), "../", "deploy/")
			if !slices.ContainsFunc(started, func(m [][]byte) bool { return string(m[1]) == command }) {
				t.Errorf("the guide has no command docker compose %s", command)
			}
			options, err := cli.NewProjectOptions(files)
			if err != nil {
				t.Fatal(err)
			}
			project, err := options.LoadProject(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.services, slices.Sorted(maps.Keys(project.Services))); diff != "" {
				t.Errorf("services (-want +got):\n%s", diff)
			}
			checkArguments(t, project.Services["listen"].Command)
			server := project.Services["hookferry"]
			known := flags(t, "serve")
			var env []string
			for name, value := range server.Environment {
				if !known[name] {
					t.Errorf("the server has the variable %s, which serve does not know", name)
				}
				if name != "HOOKFERRY_ADMIN_LISTEN" && name != "HOOKFERRY_QUEUE" {
					env = append(env, name+"="+*value)
				}
			}
			if queue := server.Environment["HOOKFERRY_QUEUE"]; (queue == nil) != (tt.queue == "") || queue != nil && !strings.HasPrefix(*queue, tt.queue) {
				t.Errorf("the URL of the store is %v, want one that begins with %q", queue, tt.queue)
			}
			if grace := server.StopGracePeriod; grace == nil || time.Duration(*grace) < 15*time.Second {
				t.Errorf("the server has %v to stop, want at least 15s", grace)
			}
			if !server.ReadOnly || !slices.Equal(server.CapDrop, []string{"ALL"}) {
				t.Error("the server can write to its root file system or has capabilities, want neither")
			}
			start(t, append(env, "HOOKFERRY_DATA="+filepath.Join(t.TempDir(), "data")), "serve")
		})
	}
}
