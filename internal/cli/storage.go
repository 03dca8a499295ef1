package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/stelelog/stele/internal/broker"
	"github.com/stelelog/stele/internal/config"
	"github.com/stelelog/stele/internal/metadata"
	"github.com/stelelog/stele/internal/quorum"
	"github.com/stelelog/stele/internal/telemetry"
	"github.com/stelelog/stele/internal/vfs"
)

func newStorage(e *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "storage",
		Short: "Look at a node's directories, or format them before its first start",
		Example: `  stele storage info --config server.properties
  stele storage format --config server.properties --metadata-version 30`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newStorageInfo(e), newStorageFormat(e))
	return cmd
}

// nodeFlags are how a node's settings are given, as to `stele serve`.
func (o *serveOptions) nodeFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVarP(&o.configFile, "config", "c", "", "properties file")
	flags.StringArrayVarP(&o.set, "set", "s", nil, "setting name=value; may be repeated")
	flags.StringVarP(&o.dataDir, "data-dir", "d", "./stele-data", "where data is kept, unless log.dirs says otherwise")
}

// storageView is what one directory holds.
type storageView struct {
	Dir       string `json:"dir"`
	Metadata  bool   `json:"metadata"` // it holds the metadata log
	State     string `json:"state"`
	Cluster   string `json:"cluster,omitempty"`
	Node      *int32 `json:"node,omitempty"`
	Directory string `json:"directory,omitempty"`
	Quorum    string `json:"quorum,omitempty"`
}

func newStorageInfo(e *env) *cobra.Command {
	var o serveOptions
	cmd := &cobra.Command{
		Use:   "info",
		Short: "Show whose a node's directories are: cluster, node, directory id, and the quorum's part",
		Long: `Show whose a node's directories are. Nothing is changed, and the node may run. The exit status is 1
when a directory is not formatted, or is not what the settings say.`,
		Example: "  stele storage info\n  stele storage info --config server.properties --output json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.dirGiven = cmd.Flags().Changed("data-dir")
			c, _, err := o.parse()
			if err != nil {
				return err
			}
			views, errs := storageInfo(vfs.OS(), c)
			t := table{header: []string{"DIR", "STATE", "CLUSTER", "NODE", "DIRECTORY", "QUORUM"}}
			for _, v := range views {
				node := "-"
				if v.Node != nil {
					node = strconv.Itoa(int(*v.Node))
				}
				t.add(v.Dir, v.State, orNone(v.Cluster), node, orNone(v.Directory), orNone(v.Quorum))
			}
			if err := e.show(views, t); err != nil {
				return err
			}
			return errors.Join(errs...)
		},
	}
	o.nodeFlags(cmd)
	return cmd
}

func storageInfo(fsys vfs.FS, c *config.Broker) (views []storageView, errs []error) {
	dirs := slices.Clone(c.LogDirs())
	if !slices.Contains(dirs, c.MetadataDir()) {
		dirs = append(dirs, c.MetadataDir())
	}
	cluster, node := c.String("cluster.id"), int32(c.Int("node.id"))
	for _, dir := range dirs {
		view := storageView{Dir: dir, Metadata: dir == c.MetadataDir(), State: "formatted"}
		wrong := func(state, todo string) {
			view.State = state
			errs = append(errs, fmt.Errorf("directory %s %s: %s", dir, state, todo))
		}
		text, err := vfs.ReadFile(fsys, filepath.Join(dir, "meta.properties"))
		props := metadata.MetaProperties{}
		if err == nil {
			props, err = metadata.ParseMetaProperties(text)
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
			wrong("is not formatted", "`stele serve` formats an empty directory at its first start, `stele storage format` does so before")
		case err != nil:
			wrong("cannot be read", err.Error())
		default:
			view.Cluster, view.Node = props.ClusterID, props.NodeID
			if props.DirectoryID != metadata.ZeroUUID {
				view.Directory = props.DirectoryID.String()
			}
			switch {
			case cluster != "" && cluster != props.ClusterID:
				wrong("is of another cluster", fmt.Sprintf("cluster.id is %s in the settings and %s in meta.properties", cluster, props.ClusterID))
			case props.NodeID != nil && *props.NodeID != node:
				wrong("is of another node", fmt.Sprintf("node.id is %d in the settings and %d in meta.properties", node, *props.NodeID))
			}
			if cluster == "" {
				cluster = props.ClusterID
			}
			if view.Metadata {
				view.Quorum = quorumState(fsys, dir)
			}
		}
		views = append(views, view)
	}
	return views, errs
}

// quorumState says in a few words what a metadata directory holds of a quorum.
func quorumState(fsys vfs.FS, dir string) string {
	forming, err := quorum.Forming(fsys, dir)
	if err != nil {
		return err.Error()
	}
	if forming {
		return "waits for the other voters to form it"
	}
	if _, ok := quorum.StoredDirectoryID(fsys, dir); ok {
		return "a controller's"
	}
	if _, err := fsys.Stat(filepath.Join(dir, quorum.TopicName+"-0")); err == nil {
		return "of Apache Kafka: taken over at the next start"
	}
	return "none: a broker's"
}

func newStorageFormat(e *env) *cobra.Command {
	var o serveOptions
	var level int
	var again bool
	cmd := &cobra.Command{
		Use:   "format",
		Short: "Format a node's directories, which `stele serve` would do at its first start",
		Long: `Format a node's directories, which ` + "`stele serve`" + ` would do at its first start: to have it done and
looked at before, or to begin a cluster at an older level of metadata.version. Only a missing or
empty directory is formatted. The cluster's id is cluster.id of the settings; a single voter makes
one up when there is none.`,
		Example: `  stele storage format --data-dir /var/lib/stele
  stele storage format --config server.properties --set cluster.id=orders
  stele storage format --data-dir /var/lib/stele --metadata-version 25`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.dirGiven = cmd.Flags().Changed("data-dir")
			c, _, err := o.parse()
			if err != nil {
				return err
			}
			if !metadata.Level(level).Supported() {
				return usagef("--metadata-version %d: this version of Stele begins clusters at %d to %d", level, metadata.LevelMin, metadata.LevelLatest)
			}
			formatted, cluster, err := formatStorage(c, metadata.Level(level), again)
			if err != nil {
				return err
			}
			if e.output == "json" {
				return e.json(map[string]any{"cluster": cluster, "node": c.Int("node.id"), "formatted": formatted})
			}
			for _, dir := range formatted {
				e.say("formatted %s for node %d of cluster %s", dir, c.Int("node.id"), cluster)
			}
			return nil
		},
	}
	o.nodeFlags(cmd)
	cmd.Flags().IntVar(&level, "metadata-version", int(metadata.LevelLatest), "level of metadata.version that a new cluster begins with; of a single voter only")
	cmd.Flags().BoolVar(&again, "ignore-formatted", false, "succeed when all is formatted already")
	return cmd
}

// formatStorage formats what is not, as a start would, and says which directories those were.
func formatStorage(c *config.Broker, level metadata.Level, again bool) (formatted []string, cluster string, err error) {
	seams := Seams{}.complete()
	n := &node{config: c, fs: seams.FS, seams: seams, logger: slog.New(slog.DiscardHandler), id: int32(c.Int("node.id")), readiness: telemetry.NewReadiness(), newLevel: level}
	if n.plan, err = broker.PlanDirectories(n.fs, c.LogDirs(), c.MetadataDir(), n.id, c.String("cluster.id")); err != nil {
		return nil, "", err
	}
	formatted = n.plan.Fresh()
	if len(formatted) == 0 {
		if again {
			return []string{}, n.plan.ClusterID, nil
		}
		return nil, "", fmt.Errorf("format %s: it is formatted already, for node %d of cluster %s: `stele storage info` shows it; --ignore-formatted lets this pass", c.MetadataDir(), n.id, n.plan.ClusterID)
	}
	if c.HasRole("controller") && level != metadata.LevelLatest {
		voters, err := n.staticVoters()
		if err != nil {
			return nil, "", err
		}
		if len(voters) > 1 {
			return nil, "", usagef("--metadata-version %d: several voters form their cluster together, at level %d", level, metadata.LevelLatest)
		}
	}
	defer n.unwind()
	return formatted, n.plan.ClusterID, n.openDirectories()
}
