"""Every name of ours that appears in a Kubernetes object."""

from typing import Literal

DOMAIN = "bursar.dev"
NAMESPACE = "bursar-system"
AGENTS_NAMESPACE = "bursar-node"  # node agents only: they need more access to a node than other pods get
SYSTEM_NAMESPACES = ("kube-system", "gpu-operator", NAMESPACE, AGENTS_NAMESPACE)  # outside admission
LEADS = "bursar-leads"  # the namespace of the accounts of groups' leads, each named after its group
AUDIENCE = "bursar"
# the timekeeper's REST API behind the API server; `bursar.dev/v1` is served from its CustomResourceDefinition
AGGREGATED_GROUP = "timekeeper.bursar.dev"
API_SERVICE = f"v1.{AGGREGATED_GROUP}"
SIDECAR = "bursar-sidecar"
SCHEDULER = "bursar-scheduler"
EXTENDER = "bursar-extender"
BUDGETS = "bursar-budgets"
CLUSTER_SETTINGS = "bursar-settings"
CLUSTER_MODE = "bursar-mode"  # the chart's: mode and placement of the cluster
# read without the label, and in this order before the others
BUDGET_CONFIG_MAPS = (CLUSTER_MODE, CLUSTER_SETTINGS, BUDGETS)
BUDGETS_LABEL = "bursar.dev/budgets"

# native resources
GPU_PERCENT = "bursar.dev/gpu-percent"
GPU_MEMORY = "bursar.dev/gpu-memory"
GPU_COUNT = "bursar.dev/gpu-count"
# "1" in one container of a pod whose request is in annotations or labels: kube-scheduler ignores it, and
# calls the extender for pods that have it
GPU_PLACEMENT = "bursar.dev/gpu-placement"
# what a container takes of the memory of its node's cards, in millionths of a card: for who calls no extender
CARD_MILLIONTHS = "cards.bursar.dev/millionths"

# pod annotations that a user may write
POLICY = "bursar.dev/policy"
MODELS = "bursar.dev/gpu-models"
EXCLUDE_MODELS = "bursar.dev/exclude-gpu-models"
UUIDS = "bursar.dev/gpu-uuids"
TOPOLOGY = "bursar.dev/topology"
SAME_GPU = "bursar.dev/same-gpu"
MIN_GPU_MEMORY = "bursar.dev/min-gpu-memory"
USER_ANNOTATIONS = (POLICY, MODELS, EXCLUDE_MODELS, UUIDS, TOPOLOGY, SAME_GPU, MIN_GPU_MEMORY)
# pod annotations that a user may write as well, of a pod that starts together with others: their name, how
# many they are, how many start at least, and the label of nodes whose value is the same for all of them, or
# for as many as possible
GANG = "bursar.dev/gang"
GANG_SIZE = "bursar.dev/gang-size"
GANG_MINIMUM = "bursar.dev/gang-minimum"
GANG_TOPOLOGY = "bursar.dev/gang-topology"
GANG_TOPOLOGY_PREFERRED = "bursar.dev/gang-topology-preferred"
GANG_TOPOLOGIES = (GANG_TOPOLOGY, GANG_TOPOLOGY_PREFERRED)
GANG_ANNOTATIONS = (GANG, GANG_SIZE, GANG_MINIMUM, *GANG_TOPOLOGIES)
# on the owner of pods: the webhook counted them, and its templates' sizes are those that it wrote
COUNTED = "bursar.dev/counted"
# "scale" on the owner of pods: with `idle: scale` it may be scaled to zero; controllers copy it to their pods
IDLE = "bursar.dev/idle"
# "off" on a pod: it gets no sidecar, unless its namespace's budget entry says `sidecar: on`
WANTS_SIDECAR = "bursar.dev/sidecar"
# "true" on a pod without GPUs: it starts once the gang of its name has. Releases before wrote other texts
# into templates of pods with GPUs, of which it says nothing
GANG_LATE = "bursar.dev/gang-late"
WRITABLE_ANNOTATIONS = (*USER_ANNOTATIONS, *GANG_ANNOTATIONS, GANG_LATE, IDLE, WANTS_SIDECAR)

# label of a namespace: its mode, where its budget entry names none. A policy restricts who may set it
MODE_LABEL = "bursar.dev/mode"
Mode = Literal["enforce", "observe", "meter"]

# what the webhook writes at admission
GOVERNED = "bursar.dev/governed"
REQUEST = "bursar.dev/request"
STANDING = "bursar.dev/standing"
OVER_AT_BINDING = " OVER_BUDGET"  # follows the standing in it where the namespace was over by the Binding
# the pod was created with our scheduling gate: `wire.HeldFor`; the annotation stays when the gate is removed
HELD = "bursar.dev/held"

# how long the pod means to run, in seconds: its activeDeadlineSeconds at its creation, of a pod that reserves
# that whole time before it is released
DECLARED = "bursar.dev/declared"

# how many GPUs the claims of the pod may be allocated at most, also of a pod that is not governed; `unknown`:
# one of them, a template or a class was not known when the pod was created, until the timekeeper releases it
CLAIMS = "bursar.dev/claims"

# the resources of the pod that `devices` in `_settings` makes accelerators, by commas
ACCELERATORS = "bursar.dev/accelerators"

# scheduling gate of pods that wait for their budget or their turn; only the timekeeper removes it
BUDGET_GATE = "bursar.dev/budget"

# scheduling gate of pods that start together, until all of them have cards; only the extender removes it
GANG_GATE = "bursar.dev/gang"
GATES = (BUDGET_GATE, GANG_GATE)
KUEUE_GATE = "kueue.x-k8s.io/admission"  # Kueue's, until the pod's Workload is admitted
# what tells the gang of such a pod from others of its namespace
GANG_KEY = "bursar.dev/gang-key"
# what the Binding writes, or the extender: when enough pods of the gang had a node
GANG_STARTED = "bursar.dev/gang-started"
# annotation and finalizer that extenders before wrote on members of a gang that did not start: they mean
# nothing any more, and for one release the timekeeper removes the finalizer
GANG_FORGIVEN = "bursar.dev/gang-forgiven"
# what the extender writes on a member of a gang that lacks some: with how many living ones it starts
GANG_NEEDS = "bursar.dev/gang-needs"

# what the timekeeper writes on running pods of a namespace that must give up its cards: RFC 3339, in seconds
EVICT_AFTER = "bursar.dev/evict-after"  # it is not evicted before
DELETE_AFTER = "bursar.dev/delete-after"  # its PodDisruptionBudget is respected until then

IDLE_UNTIL = "bursar.dev/idle-until"  # it uses no card, and is left alone until then
RECLAIMABLE = "bursar.dev/reclaimable"  # "idle": waiting pods of namespaces in budget may take its cards

# what the Binding writes
DEVICES = "bursar.dev/devices"
VISIBLE = "visible-devices.bursar.dev/"
MPS_MEMORY = "mps-memory.bursar.dev/"
MPS_THREADS = "mps-threads.bursar.dev/"
BY_CONTAINER = (VISIBLE, MPS_MEMORY, MPS_THREADS)  # a container's name follows

# annotation of a cordoned node: what it becomes, fractions or whole (docs/nodes.md)
NODE_CHANGE = "bursar.dev/node-change"

# pod condition: the extender sets it to make kube-scheduler retry a waiting pod
WAKE_CONDITION = "bursar.dev/CardFreed"

# pod condition: cards are reserved for the waiting pod
HELD_CONDITION = "bursar.dev/CardsHeld"

# condition of an extender's own pod: it takes over from other replicas
LEADS_CONDITION = "bursar.dev/Leads"

# a DeviceTaintRule keeps a device for one claim: label, the UID of the pod that waits, and annotation, the
# claim as NAMESPACE/NAME; until when it is kept at most
HEIR = "bursar.dev/heir"
HEIR_UNTIL = "bursar.dev/heir-until"
# keys of the taint, and of the toleration that the webhook gives to each claim; the claim's namespace follows
HEIR_KEYS = "heir.bursar.dev/"

# what the node agent writes
INVENTORY = "bursar.dev/inventory"
HOLDERS = "bursar.dev/holders"

# what an operator writes on a node: UUIDs of cards that must not be allocated
CORDONED_CARDS = "bursar.dev/cordoned-cards"
