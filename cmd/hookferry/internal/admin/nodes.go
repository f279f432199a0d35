package admin

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/webhook"
)

func (h *Handler) nodes(w http.ResponseWriter, r *http.Request) error {
	if q := queryOf(r); q.err != nil {
		return q.err
	}
	self := h.config.Node()
	self.Self, self.Seen = true, api.TimeOf(time.Now())
	all := api.Nodes{Nodes: []api.Node{self}}
	if shared, ok := h.config.Store.(webhook.Shared); ok {
		known, err := shared.Nodes(r.Context())
		if err != nil {
			return err
		}
		all = api.Nodes{Shared: true, Nodes: make([]api.Node, 0, len(known))}
		for i := range known {
			all.Nodes = append(all.Nodes, nodeOf(&known[i], self))
		}
	}
	return writeJSON(w, http.StatusOK, all)
}

// nodeOf returns what a store knows of a server, and of the one that is asked what
// that knows itself.
func nodeOf(n *webhook.Node, self api.Node) api.Node {
	if n.Self {
		return self
	}
	var a api.Node
	if err := json.Unmarshal(n.Note, &a); err != nil {
		a = api.Node{} // it says nothing, or what another version says
	}
	a.Name, a.Self, a.Seen = n.Name, false, api.TimeOf(n.Seen)
	return a
}
