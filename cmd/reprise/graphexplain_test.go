package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestExplainGraph: a graph file's values are explained by the plan of a file and by one made now, alike.
func TestExplainGraph(t *testing.T) {
	dir := t.TempDir()
	graph, plan := filepath.Join(dir, "g.json"), filepath.Join(dir, "p.json")
	require.NoError(t, os.WriteFile(graph, []byte(`{"format": "reprise.graph/1",
 "values": [{"name": "w", "bytes": 100, "resident": true}, {"name": "a", "bytes": 400}, {"name": "b", "bytes": 400},
  {"name": "c", "bytes": 100}, {"name": "dc", "bytes": 100}, {"name": "db", "bytes": 400}, {"name": "dw", "bytes": 100, "output": true}],
 "ops": [{"name": "f", "cost": 10, "det": "exact", "inputs": ["w"], "outputs": ["a"]},
  {"name": "g", "cost": 20, "det": "exact", "inputs": ["a"], "outputs": ["b"]},
  {"name": "h", "cost": 30, "det": "decides", "inputs": ["b"], "outputs": ["c"]},
  {"name": "dh", "cost": 30, "det": "exact", "inputs": ["c"], "outputs": ["dc"]},
  {"name": "dg", "cost": 40, "det": "exact", "inputs": ["b", "dc"], "outputs": ["db"]},
  {"name": "df", "cost": 40, "det": "exact", "inputs": ["a", "db"], "outputs": ["dw"]}]}`), 0o644))
	code, now, errs := cli("explain", graph, "--budget", "75%")
	require.Zero(t, code, errs)
	for _, want := range []string{"peak 1000 at dg, position 4 of 7, cost 180", `recomputed +a +f .*at a cost of 10`, `resident +yes +w`, `pinned +c +h .*"decides"`, `saved +yes +b`} {
		assert.Regexp(t, want, now)
	}
	code, _, errs = cli("plan", graph, "--budget", "75%", "-o", plan)
	require.Zero(t, code, errs)
	code, written, errs := cli("explain", graph, plan)
	require.Zero(t, code, errs)
	assert.Equal(t, now, written)
	code, some, _ := cli("explain", graph, "--budget", "75%", "d*")
	require.Zero(t, code)
	assert.Contains(t, some, "7 values, 3 shown")
	for _, bad := range [][]string{{"explain", graph, "none"}, {"explain", graph, "[", "--budget", "75%"}, {"explain", graph, "--train"}, {"explain", graph, plan, "--budget", "75%"}, {"explain", graph, "--budget", "1"}} {
		code, _, errs := cli(bad...)
		assert.NotZero(t, code, bad)
		assert.NotEmpty(t, errs, bad)
	}
}
