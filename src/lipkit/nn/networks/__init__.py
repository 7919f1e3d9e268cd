"""Networks with a Lipschitz constant that one chooses, built from the layers of lipkit.nn."""

from lipkit.nn.networks.invertible_resnet import InvertibleResNet as InvertibleResNet
from lipkit.nn.networks.li_resnet import li_resnet as li_resnet
from lipkit.nn.networks.lip_conv_net import lip_conv_net as lip_conv_net
from lipkit.nn.networks.mixer import mixer as mixer
from lipkit.nn.networks.mlp import mlp as mlp
from lipkit.nn.networks.residual_net import ResidualBlock as ResidualBlock
from lipkit.nn.networks.residual_net import residual_net as residual_net
from lipkit.nn.networks.shift_net import shift_net as shift_net
from lipkit.nn.networks.vit import vit as vit
